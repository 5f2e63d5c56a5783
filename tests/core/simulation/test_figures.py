"""Row 51: one frozen snapshot of gauges and counters."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from baseboard.testing import Simulation
from core.simulation.texts import run_until, text


def test_gauges_say_where_every_unfinished_request_stands() -> None:
    """INV 8: they sum to the number of unfinished requests; one in each place."""
    sim = Simulation(32, 4, num_host_blocks=8, max_num_seqs=3)
    swapped, runs = sim.submit(text(6), max_tokens=20), sim.submit(text(6, 1), max_tokens=20)
    run_until(sim, runs, 2)
    sim.preempt(swapped, "swap")
    sim.submit(text(6, 2))
    sim.submit(text(6, 3), grammar=lambda outputs: [1])
    sim.submit([5], streaming=True)
    figures = sim.scheduler.snapshot()
    assert (figures.num_running, figures.num_swapped, figures.num_waiting, figures.num_parked) == (1, 1, 1, 2)
    assert figures.num_unfinished == sim.stats.tracked_requests == 5
    assert (figures.kv_usage, figures.host_usage) == (2 / 32, 2 / 8)
    assert (figures.num_preemptions, figures.num_swaps_out) == (1, 1)
    with pytest.raises(FrozenInstanceError):
        figures.num_running = 0  # pyright: ignore[reportAttributeAccessIssue]


def test_what_came_from_outside_and_waits_for_its_turn_is_counted() -> None:
    sim = Simulation(32, 4, max_num_seqs=1)
    sim.connector.offer(text(17), 16, latency=1)
    sim.submit(text(17), max_tokens=2)
    sim.submit(text(5, 1), max_tokens=9)
    for _ in range(3):
        sim.step()
    assert len(sim.scheduler._book.loaded) == 1
    figures = sim.scheduler.snapshot()
    assert (figures.num_running, figures.num_parked, figures.num_unfinished) == (1, 1, 2)


def test_a_snapshot_does_not_change_and_a_pool_without_host_blocks_is_not_in_use() -> None:
    sim = Simulation(16, 4, pipeline_depth=1)
    sim.submit(text(5), max_tokens=5)
    sim.step()
    before = sim.scheduler.snapshot()
    assert (before.num_steps, before.num_in_flight, before.num_requests, before.host_usage) == (1, 1, 1, 0.0)
    sim.run()
    assert (before.num_steps, before.num_generated_tokens) == (1, 0)
    after = sim.scheduler.snapshot()
    assert (after.num_generated_tokens, after.num_finished, after.num_in_flight) == (5, 1, 0)
    assert (after.num_cached_blocks, after.kv_usage) == (2, 0.0)


def test_ratios_are_of_what_was_counted_and_0_of_nothing() -> None:
    sim = Simulation(32, 4, num_draft_tokens=3)
    empty = sim.scheduler.snapshot()
    assert (empty.prefix_hit_ratio, empty.draft_acceptance, empty.seconds_per_step) == (0.0, 0.0, 0.0)
    first = sim.submit(text(9), max_tokens=2)
    sim.run()
    second = sim.submit(text(9), max_tokens=7)
    sim.accept_drafts(first, [])
    sim.accept_drafts(second, [3, 1])
    sim.run()
    figures = sim.scheduler.snapshot()
    assert (figures.prefix_queries, figures.prefix_hits, figures.prefix_hit_ratio) == (18, 8, 8 / 18)
    assert figures.draft_acceptance == figures.num_drafts_accepted / figures.num_drafts


def test_a_step_takes_until_the_next_is_planned_and_idle_time_is_no_step() -> None:
    """By the injected clock: two steps of 2 s and 3 s, then 50 s of nothing to do."""
    sim = Simulation(16, 4)
    sim.submit(text(5), max_tokens=2)
    for seconds in (2, 3, 50):
        sim.step()
        sim.tick(seconds)
    sim.step()
    figures = sim.scheduler.snapshot()
    assert (figures.num_busy_steps, figures.busy_seconds, figures.last_step_seconds) == (2, 5.0, 3.0)
    assert figures.seconds_per_step == 2.5
