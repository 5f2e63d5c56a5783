"""Keys and values from outside: at once, later, never, broken; and blocks that are read after the end."""

from __future__ import annotations

import pytest

from baseboard.request.status import Status
from baseboard.testing import Simulation
from core.simulation.texts import as_alone, run_until, text


def test_what_is_at_hand_outside_is_fetched_in_the_step_that_admits() -> None:
    """Row 46: 8 whole blocks outside, 2 of them in the local cache already."""
    sim = Simulation(40, 4)
    sim.submit(text(8), max_tokens=1)
    sim.run()
    sim.connector.offer(text(40), 32)
    handle = sim.submit(text(40), max_tokens=4)
    plan = sim.step()
    assert [(load.first, load.num_tokens) for load in plan.loads] == [(8, 24)]
    assert plan.tokens == {handle.id: 8}
    assert handle.num_cached_tokens == 32
    sim.run()
    assert as_alone(sim, handle)


def test_a_hit_outside_leaves_one_token_to_compute() -> None:
    sim = Simulation(40, 4)
    sim.connector.offer(text(40), 40)
    handle = sim.submit(text(40), max_tokens=4)
    assert sim.step().tokens == {handle.id: 4}  # whole blocks, short of the last token
    sim.run()
    assert as_alone(sim, handle)


def test_a_request_whose_kv_is_on_its_way_waits_with_its_blocks_and_lets_others_run() -> None:
    sim = Simulation(40, 4, max_num_seqs=1)
    sim.connector.offer(text(40), 32, latency=3)
    handle = sim.submit(text(40), max_tokens=4)
    other = sim.submit(text(5, 1), max_tokens=2)
    assert sim.step().tokens == {other.id: 5}
    assert handle.status == "waiting_for_remote_kv"
    assert len(handle.blocks) == 8
    assert sim.step().tokens == {other.id: 1}
    sim.step()
    assert sim.step().tokens == {handle.id: 8}
    sim.run()
    assert as_alone(sim, handle, other)


def test_what_has_landed_is_served_before_new_requests() -> None:
    """Row 47."""
    sim = Simulation(40, 4, max_num_seqs=1)
    sim.connector.offer(text(40), 32, latency=2)
    handle = sim.submit(text(40), max_tokens=2)
    running = sim.submit(text(5, 1), max_tokens=6)
    sim.step()
    newcomer = sim.submit(text(5, 2), max_tokens=2)
    order = []
    while newcomer.finish_reason is None:
        order.extend(sim.step().ids)
    assert order.index(handle.id) < order.index(newcomer.id)
    assert as_alone(sim, handle, running, newcomer)


@pytest.mark.parametrize("latency", [0, 2])
def test_only_what_follows_a_lost_block_is_computed_again(latency: int) -> None:
    """Row 46: block 3 is missing, so tokens 12 and on are computed; the first 12 are kept."""
    sim = Simulation(40, 4)
    sim.connector.offer(text(40), 32, latency=latency, lost_blocks=[3])
    handle = sim.submit(text(40), max_tokens=4)
    computed: list[tuple[int, int]] = []
    while handle.finish_reason is None:
        plan = sim.step()
        computed.extend(zip(plan.starts, plan.counts, strict=True))
    assert (12, 28) in computed
    assert as_alone(sim, handle)
    follower = sim.submit(text(40), max_tokens=4)
    sim.run()
    assert follower.num_cached_tokens == 36  # what was published is what was computed
    assert as_alone(sim, follower)


def test_what_never_comes_is_computed_after_the_timeout() -> None:
    sim = Simulation(40, 4, load_timeout=5.0)
    sim.connector.offer(text(40), 32, latency=None)
    handle = sim.submit(text(40), max_tokens=4)
    other = sim.submit(text(5, 1), max_tokens=3)
    for _ in range(6):
        sim.step()
        sim.tick(0.5)
    assert other.finish_reason == "length"
    assert handle.status == "waiting_for_remote_kv"
    sim.tick(3.0)
    sim.run()
    assert as_alone(sim, handle, other)


def test_an_offer_may_become_known_late() -> None:
    sim = Simulation(40, 4)
    sim.connector.offer(text(40), 32, known_after=5)
    early = sim.submit(text(40), max_tokens=2)
    assert sim.step().tokens == {early.id: 40}
    sim.run()
    sim.reset_prefix_cache()
    for _ in range(5):
        sim.submit(text(3, 1), max_tokens=1)
        sim.step()
    late = sim.submit(text(40), max_tokens=2)
    assert sim.step().tokens[late.id] == 8
    sim.run()
    assert as_alone(sim, early, late)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_an_abort_while_kv_is_on_its_way_gives_the_blocks_back(steps: int) -> None:
    sim = Simulation(20, 4)
    sim.connector.offer(text(40), 32, latency=3)
    handle = sim.submit(text(40), max_tokens=4)
    other = sim.submit(text(5, 1), max_tokens=12)
    for _ in range(steps):
        sim.step()
    sim.abort(handle)
    follower = sim.submit(text(30, 2), max_tokens=4)
    sim.run()
    assert sim.free_blocks == 20
    assert as_alone(sim, other, follower)


def test_blocks_that_are_still_read_come_back_when_the_reading_ends() -> None:
    """Row 46: sending delays the free."""
    sim = Simulation(20, 4)
    handle = sim.submit(text(40), max_tokens=2)
    sim.connector.store(handle, latency=3)
    sim.step()
    sim.step()
    assert handle.finish_reason == "length"
    assert sim.free_blocks == 9
    again = sim.submit(text(5, 1), max_tokens=6, request_id=handle.id)  # its id is free at once
    free = []
    while again.finish_reason is None:
        sim.step()
        free.append(sim.free_blocks)
    assert free[0] == 7
    assert sim.free_blocks == 20
    assert as_alone(sim, again)


def test_requests_that_hold_blocks_and_cannot_go_on_let_go_rather_than_wait_for_each_other() -> None:
    sim = Simulation(16, 4, prefix_caching=False)
    handles = []
    for key in range(2):
        sim.connector.offer(text(30, key), 28, latency=2)
        handles.append(sim.submit(text(30, key), max_tokens=12))
    sim.run()
    assert as_alone(sim, *handles)
    assert sim.free_blocks == 16


def test_a_request_that_was_let_down_does_not_ask_again() -> None:
    """What is offered is lost each time it is sent: the request computes all of it, after one try."""
    sim = Simulation(16, 4)
    sim.connector.offer(text(12), 8, latency=2, lost_blocks=(0,))
    h = sim.submit(text(12), max_tokens=3)
    sim.run(max_steps=12)
    assert as_alone(sim, h)
    assert h.num_cached_tokens == 8, "of the try that failed"


def test_who_was_let_down_in_a_step_does_not_ask_again_when_it_comes_back() -> None:
    """The request has lost its blocks by the time it is known that what it fetched is missing."""
    sim = Simulation(40, 4, pipeline_depth=1)
    sim.connector.offer(text(12), 8, lost_blocks=[0])
    h = sim.submit(text(12), max_tokens=3)
    loads = len(sim.step().loads)
    sim.preempt(h)
    sim.pause("all")
    sim.step()
    assert (h.num_in_flight, h.status) == (0, Status.PREEMPTED)
    sim.pause("none")
    while h.finish_reason is None:
        loads += len(sim.step().loads)
    assert loads == 1
    assert as_alone(sim, h)


def test_a_sample_that_builds_on_what_is_lost_is_not_accepted() -> None:
    """The second chunk of a prompt samples from a first one for which nothing was there; nobody comes in meanwhile."""
    sim = Simulation(40, 4, pipeline_depth=1, max_num_batched_tokens=8)
    sim.connector.offer(text(24), 8, lost_blocks=[0])
    h = sim.submit(text(24), max_tokens=3)
    first, second = sim.step(), sim.step()
    assert (first.starts, second.starts, second.samples) == ((8,), (16,), (1,))
    sim.pause("all")
    sim.step()
    sim.step()
    assert (h.num_in_flight, h.tokens) == (0, [])
    sim.pause("none")
    sim.run()
    assert as_alone(sim, h)


def test_nothing_is_sent_while_a_step_under_way_writes_to_the_blocks() -> None:
    """Two steps of X are under way when its blocks go to Y, whose keys and values come from outside."""
    sim = Simulation(7, 4, policy="priority", prefix_caching=False, pipeline_depth=2, late_metadata=True)
    busy = sim.submit(text(2, 7), max_tokens=11, priority=0)
    x = sim.submit(text(9), max_tokens=6, priority=1)
    run_until(sim, x, 1)
    sim.connector.offer(text(13, 1), 12, latency=1)
    y = sim.submit(text(13, 1), max_tokens=3, priority=0)
    of_x = set(x.blocks)
    assert x.num_in_flight == 2
    sim.preempt(x)
    sim.step()
    assert y.status is Status.WAITING_FOR_REMOTE_KV
    assert of_x & set(y.blocks)
    sim.run()
    assert y.num_cached_tokens == 12
    assert as_alone(sim, busy, x, y)


def test_nothing_is_sent_to_who_has_ended_before_it_began() -> None:
    sim = Simulation(8, 4, pipeline_depth=2, late_metadata=True)
    busy = sim.submit(text(5, 2), max_tokens=20)
    run_until(sim, busy, 1)
    sim.connector.offer(text(13, 1), 12, latency=2)
    gone = sim.submit(text(13, 1), max_tokens=3)
    sim.step()
    assert gone.status is Status.WAITING_FOR_REMOTE_KV
    sim.abort(gone)
    other = sim.submit(text(14, 3), max_tokens=6)
    sim.run()
    assert as_alone(sim, busy, other)
    assert sim.connector._sending == {}
