"""How requests end: stop tokens, limits, aborts in every state, ids used again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from baseboard.contract.errors import RequestRejected
from baseboard.request.status import Status
from baseboard.testing import Handle, Simulation
from core.simulation.texts import as_alone, run_alone, run_until, text

STOP = 96


@pytest.mark.parametrize("depth", [0, 1])
def test_a_stop_token_may_be_the_first_token(depth: int) -> None:
    """Scenario 20a and 20c."""
    sim = Simulation(16, 4, pipeline_depth=depth)
    h = sim.submit(text(8), max_tokens=5, stop_token_ids=[STOP])
    sim.script(h, [STOP])
    sim.run()
    assert (h.tokens, h.finish_reason) == ([STOP], "stop")
    assert sim.free_blocks == 16
    assert as_alone(sim, h)


@pytest.mark.parametrize("depth", [0, 1])
def test_one_sample_that_stops_at_once_leaves_the_others_alone(depth: int) -> None:
    """Scenario 20b."""
    sim = Simulation(16, 4, pipeline_depth=depth)
    h = sim.submit(text(6), max_tokens=5, n=3, stop_token_ids=[STOP])
    sim.script(h.samples[1], [STOP])
    for index in (0, 2):
        sim.script(h.samples[index], [index] * 5)
    sim.run()
    assert [s.tokens for s in h.samples] == [[0] * 5, [STOP], [2] * 5]
    assert [s.finish_reason for s in h.samples] == ["length", "stop", "length"]
    assert sim.free_blocks == 16


def test_a_conversation_that_stopped_at_once_can_go_on() -> None:
    """Scenario 20d: the prompt's 8 tokens were computed, so the next turn hits both blocks."""
    sim = Simulation(16, 4)
    h = sim.submit(text(8), max_tokens=5, stop_token_ids=[STOP])
    sim.script(h, [STOP])
    sim.run()
    follow_up = run_alone(sim, [*text(8), STOP, 1, 2], max_tokens=3)
    assert follow_up.num_cached_tokens == 8
    assert as_alone(sim, follow_up)


def test_a_stop_token_in_the_middle_wins_over_the_limit() -> None:
    sim = Simulation(16, 4)
    h = sim.submit(text(5), max_tokens=4, stop_token_ids=[STOP])
    sim.script(h, [1, 2, 3, STOP])
    sim.run()
    assert (h.tokens, h.finish_reason) == ([1, 2, 3, STOP], "stop")


def test_a_stop_token_of_somebody_else_does_not_stop() -> None:
    sim = Simulation(16, 4)
    plain = sim.submit(text(5), max_tokens=4)
    stopping = sim.submit(text(5, 1), max_tokens=4, stop_token_ids=[STOP])
    sim.script(plain, [STOP] * 4)
    sim.script(stopping, [1, 2, 3, 4])
    sim.run()
    assert (len(plain.tokens), len(stopping.tokens)) == (4, 4)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_an_id_is_free_again_as_soon_as_its_request_has_finished(depth: int) -> None:
    """Scenario 21: refused while it runs, accepted at once afterwards, whatever is still under way."""
    sim = Simulation(32, 4, pipeline_depth=depth)
    first = sim.submit(text(6), max_tokens=50, request_id="x", stop_token_ids=[STOP])
    sim.script(first, [1, 2, 3, STOP])
    sim.step()
    with pytest.raises(RequestRejected, match=r"request id 'x' is in use: choose another"):
        sim.submit(text(4), request_id="x")
    while first.finish_reason is None:
        sim.step()
    second = sim.submit(text(6, 1), max_tokens=9, request_id="x", salt="other")
    sim.run()
    assert first.tokens == [1, 2, 3, STOP]
    assert (len(second.tokens), second.finish_reason) == (9, "length")
    assert as_alone(sim, first, second)


def test_ids_of_samples_cannot_collide_with_those_of_users() -> None:
    """Scenario 21: the samples of "x" are "x", "x#1", "x#2"."""
    sim = Simulation(32, 4)
    x = sim.submit(text(4), request_id="x", n=3, max_tokens=4)
    with pytest.raises(RequestRejected, match="'x#2' is in use"):
        sim.submit(text(4), request_id="x#2")
    sim.step()
    with pytest.raises(RequestRejected, match="'x#2' is in use"):
        sim.submit(text(4), request_id="x#2")
    other = sim.submit(text(4, 1), request_id="y#1", max_tokens=4)
    with pytest.raises(RequestRejected, match="'y#1' is in use"):
        sim.submit(text(4), request_id="y", n=2)
    sim.run()
    assert as_alone(sim, *x.samples, other)
    sim.abort(sim.submit(text(4), request_id="x", n=3))
    assert sim.submit(text(4), request_id="x#2").id == "x#2"


def test_an_id_that_was_not_given_is_one_that_is_free() -> None:
    sim = Simulation(32, 4)
    assert [sim.submit(text(4), request_id=name).id for name in ("r1", None, None)] == ["r1", "r2", "r3"]


# --- abort in every state (scenario 23): B=4, 12 device and 12 host blocks, R0 is aborted, R1 must not notice ---------


def queued(sim: Simulation) -> Handle:
    return sim.submit(text(10), max_tokens=20)


def planned(sim: Simulation) -> Handle:
    """In a plan that is under way: executed already, or with a late device not even read."""
    r0 = queued(sim)
    sim.step()
    assert r0.num_in_flight == (1 if sim._depth else 0)
    return r0


def decoding(sim: Simulation) -> Handle:
    r0 = queued(sim)
    run_until(sim, r0, 5)
    return r0


def half_prefilled(sim: Simulation) -> Handle:
    r0 = queued(sim)
    sim.step()
    return r0


def preempted(sim: Simulation) -> Handle:
    r0 = decoding(sim)
    sim.preempt(r0)
    assert r0.status is Status.PREEMPTED
    return r0


def about_to_be_moved_out(sim: Simulation) -> Handle:
    r0 = decoding(sim)
    sim.preempt(r0, "swap")
    assert r0.status is Status.SWAPPED
    return r0


def swapping_out(sim: Simulation) -> Handle:
    """Moved out by a plan; with a copy latency the transfer has not landed yet."""
    r0 = about_to_be_moved_out(sim)
    assert sim.step().swaps_out
    return r0


def swapping_in(sim: Simulation) -> Handle:
    r0 = swapping_out(sim)
    assert sim.step().swaps_in
    return r0


@pytest.mark.parametrize(
    "reach",
    [
        queued,
        planned,
        decoding,
        half_prefilled,
        preempted,
        about_to_be_moved_out,
        swapping_out,
        swapping_in,
    ],
)
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("late", [False, True])
def test_a_request_can_be_aborted_in_every_state(reach: Callable[[Simulation], Handle], depth: int, late: bool) -> None:
    """Scenario 23: one end, everything back, the other request equals solo."""
    sim = Simulation(
        12,
        4,
        num_host_blocks=12,
        pipeline_depth=depth,
        late_metadata=late,
        copy_latency=3 if late else 0,
        prefix_caching=False,
        max_num_batched_tokens=7 if reach is half_prefilled else 64,
    )
    r1 = sim.submit(text(9, 1), max_tokens=12)
    sim.step()
    r0 = reach(sim)
    tokens = list(r0.tokens)
    sim.abort(r0)
    sim.abort(r0)
    assert (r0.finish_reason, r0.blocks) == ("abort", [])
    assert sim.free_blocks == 12 - len(r1.blocks)
    assert sim.free_host_blocks == 12
    assert sim.stats.tracked_requests == 1
    sim.run()
    assert r0.tokens == tokens
    assert as_alone(sim, r1)
    assert sim.free_blocks == 12
    sim.step()
    assert sim.device.num_rows == 0


def test_aborting_what_has_finished_changes_nothing() -> None:
    sim = Simulation(12, 4)
    h = run_alone(sim, text(10), max_tokens=3)
    sim.abort(h)
    assert (h.finish_reason, len(h.tokens)) == ("length", 3)
    assert sim.scheduler.stats.num_finished == 1


def test_a_host_block_given_up_before_its_move_is_the_target_of_one_move_only() -> None:
    """R0 is preempted and aborted between two steps; its one host block goes to R1, preempted next."""
    sim = Simulation(12, 4, num_host_blocks=2)
    r0, r1 = sim.submit(text(4), max_tokens=9), sim.submit(text(4, 1), max_tokens=9)
    run_until(sim, r1, 2)
    sim.preempt(r0, "swap")
    sim.abort(r0)
    sim.preempt(r1, "swap")
    plan = sim.step()
    assert len(plan.swaps_out) == 2
    assert r1.status is Status.SWAPPED
    sim.run()
    assert as_alone(sim, r1)
