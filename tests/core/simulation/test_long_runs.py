"""What must not drift over many requests: blocks, maps, counters."""

from __future__ import annotations

import itertools

from baseboard.testing import Simulation
from core.simulation.texts import as_alone, run_until, text


def test_blocks_come_back_from_hundreds_of_requests() -> None:
    """Scenario 55: 200 different requests of 10 blocks, then 200 that share 5; some aborted, some failing."""
    sim = Simulation(40, 16)
    for number in range(400):
        own = [number // 97, number % 97]
        prompt = [*own, *text(153)] if number < 200 else [*text(80, 1), *own, *text(73)]
        h = sim.submit(prompt, max_tokens=3)
        if number % 13 == 5:
            sim.fail_next_step()
        assert h.id in sim.step().tokens, "it is admitted at once"
        if number % 7 == 3:
            sim.abort(h)
        sim.run()
        assert h.finish_reason in {"length", "abort", "error"}
        assert h.finish_reason != "length" or as_alone(sim, h)
        assert sim.free_blocks == 40
        assert sim.stats.tracked_requests == 0
        assert sim.device.num_rows <= 1
        assert number < 205 or h.num_cached_tokens == 80 or h.finish_reason == "error"
    assert sim.stats.evictions > 1000
    assert sim.cached_blocks <= 40


def test_counters_count_once_through_a_preemption_and_never_go_down() -> None:
    """Scenario 89: P=100 M=10 preempted at 104 tokens; 6 full blocks are still cached, 8 tokens are computed again."""
    sim = Simulation(16, 16)
    r0 = sim.submit(text(100), max_tokens=10)
    scrapes = [sim.stats]
    while r0.finish_reason is None:
        sim.step()
        scrapes.append(sim.stats)
        if len(r0.tokens) == 4 and not r0.num_preemptions:
            sim.preempt(r0)
    stats = sim.stats
    assert stats.num_prompt_tokens == 100
    assert stats.num_generated_tokens == 10
    assert (stats.prefix_queries, stats.prefix_hits) == (100, 0)
    assert stats.num_preemptions == 1
    assert stats.num_recomputed_tokens == 104 - 96
    assert stats.num_scheduled_tokens == 100 + 9 + 7  # what was lost: tokens 96 to 102
    assert stats["num_preemptions"] == 1
    assert r0.num_cached_tokens <= 100
    counters = [name for name in type(stats).__slots__ if name != "tracked_requests"]
    for before, after in itertools.pairwise(scrapes):
        assert all(before[name] <= after[name] for name in counters)


def test_every_unfinished_request_stands_in_one_queue() -> None:
    sim = Simulation(32, 4, num_host_blocks=8, max_num_seqs=2)
    a, b = sim.submit(text(6), max_tokens=20), sim.submit(text(6, 1), max_tokens=20)
    run_until(sim, b, 2)
    sim.submit(text(6, 2), max_tokens=3)
    sim.preempt(a, "swap")
    scheduler = sim.scheduler
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_swapped) == (1, 1, 1)
    assert scheduler.num_unfinished == sim.stats.tracked_requests == 3
    sim.run()
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_swapped) == (0, 0, 0)
