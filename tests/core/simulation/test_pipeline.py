"""Plans made ahead of results: what is under way when something changes."""

from __future__ import annotations

import pytest

from baseboard.request.status import Status
from baseboard.testing import Simulation
from core.simulation.texts import as_alone, run_alone, run_until, text

STOP = 96


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_step_is_wasted_past_max_tokens(depth: int) -> None:
    """Scenario 14: R0 (P=4, M=1) is in one batch and holds one block; R1 (P=7, M=2) is in two and holds two."""
    sim = Simulation(8, 4, pipeline_depth=depth)
    r0, r1 = sim.submit(text(4), max_tokens=1), sim.submit(text(7, 1), max_tokens=2)
    batches, most = {r0.id: 0, r1.id: 0}, {r0.id: 0, r1.id: 0}
    while r0.finish_reason is None or r1.finish_reason is None:
        plan = sim.step()
        for h in (r0, r1):
            batches[h.id] += h.id in plan.tokens
            most[h.id] = max(most[h.id], len(h.blocks))
    assert batches == {r0.id: 1, r1.id: 2}
    assert most == {r0.id: 1, r1.id: 2}
    assert sim.free_blocks == 8
    assert as_alone(sim, r0, r1)


def test_a_victim_whose_stop_token_is_under_way_is_finished_once() -> None:
    """Scenario 24: R1 needs a 4th block and takes R0's while R0's stop token is pending."""
    sim = Simulation(6, 4, pipeline_depth=1)
    r1 = sim.submit(text(12), max_tokens=8)
    r0 = sim.submit(text(12, 1), max_tokens=8, stop_token_ids=[STOP])
    sim.script(r0, [STOP])
    sim.step()
    assert (sim.free_blocks, r0.num_in_flight) == (0, 1)
    assert sim.step().tokens == {r1.id: 1}
    assert (r0.status, r0.tokens, r0.blocks) == (Status.STOPPED, [STOP], [])
    assert (r0.num_preemptions, sim.free_blocks) == (1, 2)
    assert (sim.scheduler.num_waiting, sim.stats.stale_results) == (0, 0)
    sim.run()
    assert as_alone(sim, r0, r1)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_token_under_way_counts_though_its_request_was_preempted(mode: str) -> None:
    """It was sampled from the right context; sampling it again would give the same one, steps later."""
    sim = Simulation(16, 4, num_host_blocks=8, pipeline_depth=1, max_num_seqs=1, policy="priority")
    h = sim.submit(text(6), max_tokens=9, priority=1)
    run_until(sim, h, 3)
    assert h.num_in_flight == 1
    urgent = sim.submit(text(4, 1), max_tokens=2)
    sim.preempt(h, mode)
    sim.step()
    assert (len(h.tokens), sim.stats.stale_results) == (4, 0)
    sim.run()
    assert as_alone(sim, h, urgent)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_token_that_comes_after_its_request_has_come_back_is_dropped(mode: str) -> None:
    sim = Simulation(16, 4, num_host_blocks=8, pipeline_depth=3)
    h, other = sim.submit(text(6), max_tokens=12), sim.submit(text(6, 1), max_tokens=12)
    run_until(sim, h, 2)
    sim.preempt(h, mode)
    sim.run()
    assert sim.stats.stale_results > 0
    assert as_alone(sim, h, other)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_tokens_do_not_depend_on_how_far_ahead_plans_are_made(depth: int, late: bool, reverse: bool) -> None:
    sim = Simulation(
        24, 4, num_host_blocks=6, pipeline_depth=depth, late_metadata=late, reverse_rows=reverse, copy_latency=2
    )
    handles = [sim.submit(text(9, key), max_tokens=14, n=1 + key % 2, seed=key) for key in range(6)]
    sim.run()
    assert as_alone(sim, *[sample for h in handles for sample in h.samples])
    assert sim.stats.num_preemptions > 0


def test_results_of_a_step_after_a_stop_are_dropped_and_blocks_come_back_once() -> None:
    sim = Simulation(16, 4, pipeline_depth=2)
    h = sim.submit(text(6), max_tokens=20, stop_token_ids=[STOP])
    sim.script(h, [1, STOP, 5, 5, 5])
    sim.run()
    assert h.tokens == [1, STOP]
    assert sim.stats.stale_results == 2
    assert sim.free_blocks == 16


def test_a_fork_shares_only_what_has_landed() -> None:
    """The parent is computed anew in chunks; two are under way, so the child has nothing yet to rely on."""
    sim = Simulation(32, 4, pipeline_depth=3, max_num_batched_tokens=4, prefix_caching=False)
    parent = sim.submit(text(6), max_tokens=20)
    run_until(sim, parent, 4)
    sim.preempt(parent)
    sim.step()
    sim.step()
    assert parent.status is Status.RUNNING
    child = sim.fork(parent)
    assert (child.status, child.blocks) == (Status.WAITING, [])
    sim.run()
    assert as_alone(sim, parent, child)


def test_a_fork_takes_the_blocks_that_steps_under_way_do_not_touch() -> None:
    sim = Simulation(32, 4, pipeline_depth=2, prefix_caching=False)
    parent = sim.submit(text(6), max_tokens=20)
    run_until(sim, parent, 6)
    assert (len(parent.tokens), parent.num_computed_tokens, parent.num_in_flight) == (6, 13, 2)
    child = sim.fork(parent)
    assert child.num_computed_tokens == 11
    assert child.blocks == parent.blocks[:3]
    sim.run()
    assert as_alone(sim, parent, child)


def test_a_child_that_inherits_a_published_block_does_not_change_it_for_others() -> None:
    """The parent ran ahead, filled block 1 and published it, then left: the child fills it with other tokens."""
    sim = Simulation(32, 4, pipeline_depth=2, max_num_batched_tokens=1)
    parent = sim.submit(text(6), max_tokens=20)
    run_until(sim, parent, 1)
    # Two steps under way fill positions 6 and 7; the budget of 1 keeps the child from writing before they land.
    child = sim.fork(parent)
    assert (child.num_computed_tokens, parent.num_computed_tokens) == (6, 8)
    sim.script(child, [*child.tokens, 90, 91, 92])
    run_until(sim, parent, 3)
    assert child.blocks == parent.blocks[:2]
    assert sim.cached_blocks == 2
    ran_ahead = list(parent.tokens)
    sim.abort(parent)
    run_until(sim, child, 4)
    assert child.tokens[1:] == [90, 91, 92]
    follower = run_alone(sim, [*text(6), *ran_ahead[:2], 7], max_tokens=3)
    assert as_alone(sim, child, follower)


def test_room_kept_from_running_ahead_is_not_counted_as_room_for_others() -> None:
    """R1 comes back with a block for a token it lost and a token yet to catch up with; nothing is free for R2."""
    sim = Simulation(4, 4, num_host_blocks=8, pipeline_depth=3, long_prefill_token_threshold=1, prefix_caching=False)
    r0, r1 = sim.submit(text(1), max_tokens=9), sim.submit(text(2, 1), max_tokens=9)
    for _ in range(5):
        sim.step()
    assert (len(r1.request.tokens), r1.num_computed_tokens, len(r1.blocks), sim.free_blocks) == (3, 5, 2, 0)
    sim.preempt(r1, "swap")
    r2 = sim.submit(text(1, 50), max_tokens=1)
    sim.step()
    assert sim.step().tokens == {r0.id: 1, r1.id: 1}
    assert (len(r1.request.tokens), r1.num_computed_tokens, sim.free_blocks) == (4, 3, 0)
    sim.run()
    assert as_alone(sim, r0, r1, r2)
