"""Who is first when something comes free: after preemptions, pauses, failed attempts; and how often anybody loses."""

from __future__ import annotations

import pytest

from baseboard.request.status import Status
from baseboard.scheduler.preemption import Recompute
from baseboard.testing import Handle, Simulation
from core.scheduler.bench import Bench
from core.simulation.texts import as_alone, run_until, text


def free_choice(_outputs: object) -> range:
    return range(97)


def test_an_older_request_that_becomes_ready_goes_before_one_that_was_preempted() -> None:
    """Scenario 8: Q arrived first and was parked; A, preempted by hand at 10 outputs, is ready in the same step. Our
    order is that of arrival, whatever has run: Q, then A, which is overtaken once.
    """
    sim = Simulation(8, 16, policy="priority")
    q = sim.submit(text(64), max_tokens=64, grammar=free_choice)
    a = sim.submit(text(64, 1), max_tokens=64)
    run_until(sim, a, 10)
    sim.preempt(a)
    sim.grammar_ready(q)
    order: list[str] = []
    while sim.stats.tracked_requests:
        order += [name for name in sim.step().ids if name not in order]
    assert order == [q.id, a.id]
    assert len(a.tokens) == len(q.tokens) == 64
    assert a.num_preemptions == 1, "overtaken once, not again and again"
    assert as_alone(sim, q, a)


@pytest.mark.parametrize("policy", ["priority", "fcfs"])
def test_nobody_is_preempted_more_often_than_there_are_requests(policy: str) -> None:
    """Scenario 8: four requests of equal priority in a pool that holds one in the end."""
    sim = Simulation(8, 16, policy=policy)
    handles = [sim.submit(text(24, at), max_tokens=64) for at in range(4)]
    sim.run()
    assert sim.stats.num_preemptions > 0
    assert all(handle.num_preemptions <= 4 for handle in handles)
    assert as_alone(sim, *handles)


def test_a_more_important_request_is_next_when_a_place_comes_free() -> None:
    """Scenario 9. There is no slot preemption: A and B keep their places; C goes before D."""
    sim = Simulation(400, 16, policy="priority", max_num_seqs=2)
    a, b = (sim.submit(text(8, at), max_tokens=60 + 20 * at, priority=10) for at in range(2))
    for _ in range(4):
        sim.step()
    c = sim.submit(text(8, 2), max_tokens=4, priority=0)
    sim.step()
    d = sim.submit(text(8, 3), max_tokens=4, priority=10)
    while not a.finish_reason:
        assert set(sim.step().ids) == {a.id, b.id}
    assert set(sim.step().ids) == {b.id, c.id}
    sim.run()
    assert (a.num_preemptions, b.num_preemptions) == (0, 0)
    assert as_alone(sim, a, b, c, d)


@pytest.mark.parametrize("in_flight", [0, 1])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_pause_that_clears_the_cache_drops_no_token(in_flight: int, depth: int) -> None:
    """Scenario 13: nothing under way when the cache is cleared, or one step."""
    sim = Simulation(16, 4, pipeline_depth=depth)
    r0 = sim.submit(text(6), max_tokens=8)
    run_until(sim, r0, 3 - in_flight)
    sim.pause("all")
    if not in_flight:
        while r0.num_in_flight:
            sim.step()
    assert bool(r0.num_in_flight) == bool(in_flight)
    sim.reset_prefix_cache(preempt=True)
    sim.pause("none")
    sim.run()
    assert len(r0.tokens) == 8
    assert as_alone(sim, r0)


def samples_of(handles: list[Handle]) -> list[Handle]:
    return [sample for handle in handles for sample in handle.samples]


def test_no_new_request_starts_where_anything_was_preempted_or_sits_swapped() -> None:
    """Scenario 16: 12 requests of 4 samples, 20 blocks each at their peak, 64 blocks here and 32 in the host."""
    sim = Simulation(64, 16, num_host_blocks=32, preemption="swap", max_num_batched_tokens=256)
    handles = [sim.submit(text(64, at), max_tokens=64, n=4) for at in range(12)]
    started: set[str] = set()
    robbed = 0
    while sim.stats.tracked_requests:
        was_swapped, before = sim.scheduler.num_swapped, sim.stats.num_preemptions
        plan = sim.step()
        new = {handle.id for handle in handles} & set(plan.ids) - started
        started |= new
        robbed += sim.stats.num_preemptions > before
        if sim.stats.num_preemptions > before or (was_swapped and sim.scheduler.num_swapped):
            assert not new
        assert 0 <= sim.free_host_blocks <= 32
    assert robbed > 0
    assert len(samples_of(handles)) == 48
    assert as_alone(sim, *samples_of(handles))
    assert (sim.free_blocks, sim.free_host_blocks) == (64, 32)


@pytest.mark.parametrize("host", [0, 1])
def test_without_room_in_the_host_a_group_is_computed_again(host: int) -> None:
    """Scenario 17: two requests of two samples, 6 blocks each at their peak, in a pool of 6."""
    sim = Simulation(6, 4, num_host_blocks=host, preemption="swap")
    handles = [sim.submit(text(8, at), max_tokens=8, n=2) for at in range(2)]
    sim.run()
    assert sim.stats.num_preemptions > 0
    assert [sample.finish_reason for sample in samples_of(handles)] == ["length"] * 4
    assert as_alone(sim, *samples_of(handles))
    assert sim.free_blocks == 6


def test_failed_attempts_to_place_what_has_landed_change_nothing() -> None:
    """Scenario 33: 32 tokens have landed in 2 blocks; while three attempts fail, it keeps both and takes no more."""
    sim = Simulation(6, 16, prefix_caching=False, max_num_batched_tokens=64)
    sim.connector.offer(text(40), 32, latency=2)
    waiting = sim.submit(text(40), max_tokens=4)
    busy = sim.submit(text(56, 1), max_tokens=8)
    for _ in range(2):
        sim.step()
    assert len(busy.blocks) == 4
    attempts = 0
    while not busy.finish_reason:
        sim.step()
        if waiting.status is Status.LOADED and not busy.finish_reason:
            attempts += 1
            assert (waiting.num_computed_tokens, len(waiting.blocks), sim.free_blocks) == (32, 2, 0)
    assert attempts >= 3
    assert sim.step().tokens == {waiting.id: 8}
    assert len(waiting.blocks) == 3
    sim.run()
    assert as_alone(sim, waiting, busy)
    assert sim.free_blocks == 6


@pytest.mark.parametrize("host", [0, 16])
@pytest.mark.parametrize("running", [False, True])
def test_nothing_is_hit_that_was_computed_before_the_device_was_cleared(host: int, running: bool) -> None:
    """Scenario 57: 64 tokens, a reset as for a sleep, then one as for new weights; the host pool is no way round."""
    sim = Simulation(24, 16, num_host_blocks=host)
    other = sim.submit(text(64) + text(8, 1), max_tokens=60)
    if running:
        run_until(sim, other, 2)
        if host:
            sim.preempt(other, "swap")
    else:
        sim.abort(other)
    first = sim.submit(text(64), max_tokens=2)
    while not first.finish_reason:
        sim.step()
    for preempt in (False, True):
        sim.reset_prefix_cache(preempt=preempt)
        assert sim.cached_blocks == 0
        assert not (preempt and running and other.num_computed_tokens), "who ran computes its tokens anew"
        again = sim.submit(text(64), max_tokens=2)
        while not again.finish_reason:
            sim.step()
        assert again.num_cached_tokens == 0
        assert as_alone(sim, again)
    sim.run()
    assert not running or as_alone(sim, other)


@pytest.mark.parametrize("case", ["cold", "warm", "chunks", "preempted"])
def test_every_prompt_position_is_computed_for_one_who_asks_for_its_logprobs(case: str) -> None:
    """Scenario 88, the scheduler's part: blocks of 16, a prompt of 40. What rows compute tells of the token after."""
    bench = Bench(num_blocks=12, block_size=16, max_num_batched_tokens=16 if case in {"chunks", "preempted"} else 64)
    if case == "warm":
        bench.add("before", range(40), max_tokens=1)
        bench.step()
    asks = bench.add("asks", range(40), max_tokens=3, prompt_logprobs=1)
    told: dict[int, int] = {}
    chunks: list[int] = []
    while not asks.num_outputs:
        plan = bench.step()
        (start,), (count,) = plan.starts, plan.counts
        told.update({at + 1: asks.tokens[at + 1] for at in range(start, start + count) if at + 1 < 40})
        chunks.append(count)
        if case == "preempted" and len(chunks) == 2:
            bench.scheduler.preempt(asks, Recompute())
    assert told == {at: at for at in range(1, 40)}, "39 entries, and none for the first token"
    expected = {"cold": [40], "warm": [40], "chunks": [16, 16, 8], "preempted": [16, 16, 16, 16, 8]}
    assert chunks == expected[case]
    assert asks.num_cached == 0
