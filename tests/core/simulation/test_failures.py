"""Steps that fail: whose requests end, and what the others may still rely on."""

from __future__ import annotations

import pytest

from baseboard.request.status import Status
from baseboard.testing import Simulation
from core.simulation.texts import as_alone, run_alone, run_until, text


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("late", [False, True])
def test_only_requests_of_the_failed_step_end(depth: int, late: bool) -> None:
    """Scenario 101: they end with an error, their blocks are back, nothing of the step is published."""
    sim = Simulation(32, 4, pipeline_depth=depth, late_metadata=late)
    doomed = [sim.submit(text(9, key), max_tokens=5) for key in (1, 2)]
    sim.fail_next_step()
    sim.step()
    spared = sim.submit(text(9, 1), max_tokens=5)
    sim.run()
    assert [(h.finish_reason, h.error, h.tokens) for h in doomed] == [("error", "step 0 was told to fail", [])] * 2
    assert spared.num_cached_tokens == 0
    assert as_alone(sim, spared)
    assert sim.free_blocks == 32
    again = run_alone(sim, text(9, 2), max_tokens=5)
    assert again.num_cached_tokens == 0
    assert as_alone(sim, again)
    sim.step()
    assert sim.device.num_rows == 0


def test_waiting_preempted_and_swapped_requests_survive_a_failed_step() -> None:
    sim = Simulation(32, 4, num_host_blocks=8, max_num_seqs=2)
    swapped, other = sim.submit(text(9, 1), max_tokens=9), sim.submit(text(9, 2), max_tokens=20)
    run_until(sim, swapped, 2)
    waiting = sim.submit(text(9, 3), max_tokens=4)
    sim.preempt(swapped, "swap")
    sim.step()
    assert (swapped.status, waiting.status) == (Status.SWAPPED, Status.WAITING)
    sim.abort(other)
    sim.fail_next_step()
    plan = sim.step()
    assert plan.swaps_in
    assert swapped.finish_reason == "error", "scenario 101c: it failed as it was swapped in"
    assert set(plan.tokens) == {swapped.id, waiting.id}
    later = run_alone(sim, text(9, 3), max_tokens=4)
    assert as_alone(sim, later)
    assert (sim.free_blocks, sim.free_host_blocks) == (32, 8)


def test_a_request_that_a_failed_step_was_to_move_out_computes_its_tokens_again() -> None:
    sim = Simulation(32, 4, num_host_blocks=8)
    moved, doomed = sim.submit(text(9, 1), max_tokens=9), sim.submit(text(9, 2), max_tokens=9)
    run_until(sim, moved, 2)
    sim.preempt(moved, "swap")
    sim.fail_next_step()
    assert sim.step().swaps_out
    assert (moved.status, doomed.finish_reason) == (Status.PREEMPTED, "error")
    assert sim.free_host_blocks == 8
    sim.run()
    assert as_alone(sim, moved)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("late", [False, True])
def test_a_request_moved_out_after_a_chunk_that_then_fails_computes_it_again(depth: int, late: bool) -> None:
    """Its blocks went to the host in the plan behind the failed one, without what that one was to write."""
    sim = Simulation(32, 4, num_host_blocks=8, pipeline_depth=depth, late_metadata=late, max_num_batched_tokens=4)
    h = sim.submit(text(11), max_tokens=5)
    sim.fail_next_step()
    sim.step()
    sim.preempt(h, "swap")
    sim.run()
    assert h.finish_reason == "length"
    assert as_alone(sim, h)


@pytest.mark.parametrize("depth", [2, 3])
def test_a_request_that_came_back_before_its_move_out_failed_computes_its_tokens_again(depth: int) -> None:
    sim = Simulation(32, 4, num_host_blocks=8, pipeline_depth=depth, late_metadata=True)
    h, other = sim.submit(text(9, 1), max_tokens=30), sim.submit(text(9, 2), max_tokens=30)
    run_until(sim, h, 3)
    while sim._flights:
        sim._land()
    sim.preempt(h, "swap")
    assert sim.step().swaps_out
    assert sim.step().swaps_in
    assert h.status is Status.RUNNING
    sim.fail_next_step()
    sim.run()
    assert other.finish_reason == "error"
    assert h.finish_reason == "length"
    assert as_alone(sim, h)


def test_results_that_build_on_a_failed_step_are_not_accepted() -> None:
    """The first chunk fails after the request was preempted; the second, already under way, samples from nothing."""
    sim = Simulation(
        32, 4, pipeline_depth=2, late_metadata=True, max_num_batched_tokens=8, max_num_seqs=1, policy="priority"
    )
    h = sim.submit(text(12), max_tokens=5)
    sim.step()
    sim.step()
    assert (h.num_in_flight, h.num_computed_tokens) == (2, 12)
    sim.preempt(h)
    blocker = sim.submit(text(4, 1), max_tokens=6, priority=-1)
    sim.fail_next_step()
    sim.step()
    sim.step()
    assert (h.num_in_flight, h.status, h.tokens) == (0, Status.PREEMPTED, [])
    sim.run()
    assert as_alone(sim, h, blocker)


def test_a_fork_does_not_build_on_a_copy_that_may_fail() -> None:
    """The parent's own copy of the shared block is under way when it is forked; then that step fails."""
    sim = Simulation(32, 4, pipeline_depth=2, late_metadata=True)
    first = sim.submit(text(6), max_tokens=20, n=2, seed=1)
    run_until(sim, first, 1)
    while not sim.step().copies:
        pass
    copied = next(s for s in first.samples if sim.scheduler.kv.pool.refs(s.blocks[1]) == 1)
    child = sim.fork(copied)
    assert child.num_computed_tokens <= 4
    sim.fail_next_step()
    sim.run()
    assert first.finish_reason == "error"
    assert child.finish_reason == "length"
    assert as_alone(sim, child)


def test_a_fork_does_not_build_on_a_swap_in_that_may_fail() -> None:
    """The parent's blocks are on their way back from the host when it is forked; then that step fails."""
    sim = Simulation(32, 4, num_host_blocks=16, pipeline_depth=1, late_metadata=True)
    parent = sim.submit(text(8), max_tokens=20, seed=1)
    run_until(sim, parent, 3)
    sim.preempt(parent, "swap")
    while not sim.step().swaps_in:
        pass
    child = sim.fork(parent)
    assert child.num_computed_tokens == 0
    sim.fail_next_step()
    sim.run()
    assert (parent.finish_reason, child.finish_reason) == ("error", "length")
    assert as_alone(sim, child)


def test_blocks_that_a_failed_step_was_to_wipe_are_wiped_by_the_next() -> None:
    sim = Simulation(12, 4)
    run_alone(sim, text(12))
    doomed = sim.submit(text(4, 1), max_tokens=5)
    sim.reset_prefix_cache()
    sim.fail_next_step()
    wiped = sim.step().zeroes
    assert (len(wiped), doomed.finish_reason) == (3, "error")
    assert set(sim.step().zeroes) == set(wiped)
    assert sim.step().zeroes == ()


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_steps_behind_a_failed_one_still_execute_in_order(depth: int) -> None:
    sim = Simulation(32, 4, pipeline_depth=depth, max_num_seqs=2)
    handles = []
    for key in range(12):
        handles.append(sim.submit(text(5, key), max_tokens=4))
        if key % 4 == 1:
            sim.fail_next_step()
        sim.step()
    sim.run()
    failures = sum(h.finish_reason == "error" for h in handles)
    assert 1 <= failures <= 6
    assert as_alone(sim, *[h for h in handles if h.finish_reason == "length"])
    assert sim.free_blocks == 32


def test_samples_of_a_prompt_that_failed_have_failed_too() -> None:
    sim = Simulation(32, 4)
    h = sim.submit(text(5), n=3)
    sim.fail_next_step()
    sim.step()
    assert [s.finish_reason for s in h.samples] == ["error"] * 3
    again = sim.submit(text(5), n=3, request_id=h.id)
    sim.run()
    assert as_alone(sim, *again.samples)
