"""Rows 39 and 54: which blocks a step computes, which are computed, which several sequences have in common."""

from __future__ import annotations

from baseboard.scheduler.blocks import common_beginning
from baseboard.testing import Simulation
from core.simulation.texts import run_alone, run_until, text


def test_a_step_writes_to_the_blocks_of_its_own_positions() -> None:
    """Row 39: positions 0 to 5 are blocks 0 and 1 of the table, 6 to 9 are 1 and 2."""
    sim = Simulation(16, 4, max_num_batched_tokens=6)
    h = sim.submit(text(10), max_tokens=4)
    written = []
    for _ in range(3):
        plan = sim.step()
        written.append(sim.scheduler.written_blocks(plan)[h.id])
    table = h.blocks
    assert written == [(table[0], table[1]), (table[1], table[2]), (table[2],)]


def test_computed_is_what_is_full_and_has_landed() -> None:
    sim = Simulation(16, 4, max_num_batched_tokens=6, pipeline_depth=1)
    h = sim.submit(text(10), max_tokens=4)
    assert sim.scheduler.computed_blocks(h.request) == ()
    sim.step()
    assert (h.num_computed_tokens, sim.scheduler.computed_blocks(h.request)) == (6, ())
    sim.step()
    assert (h.num_computed_tokens, sim.scheduler.computed_blocks(h.request)) == (10, tuple(h.blocks[:1]))
    sim.step()
    assert sim.scheduler.computed_blocks(h.request) == tuple(h.blocks[:2])
    sim.run()
    assert sim.scheduler.computed_blocks(h.request) == ()


def test_samples_have_their_prompt_in_common() -> None:
    """Row 54: 10 tokens of prompt are 2 full blocks; what each sample wrote behind them is its own."""
    sim = Simulation(32, 4)
    h = sim.submit(text(10), max_tokens=9, n=3, seed=1)
    run_until(sim, h, 6)
    requests = [sample.request for sample in h.samples]
    assert sim.scheduler.common_blocks(requests) == tuple(h.blocks[:2])
    assert sim.scheduler.common_blocks(requests[:1]) == tuple(h.blocks[:3])
    assert sim.scheduler.common_blocks([]) == ()
    sim.preempt(h)
    assert sim.scheduler.common_blocks(requests) == ()


def test_a_common_beginning_ends_where_a_table_differs_or_ends() -> None:
    assert common_beginning([[1, 2, 3], [1, 2, 4], [1, 2]]) == (1, 2)
    assert common_beginning([[1, 2], [3, 2]]) == ()


def test_the_free_list_is_in_the_order_of_last_use() -> None:
    """Row 54: a hit counts as use, so A's head goes last although it was computed first; tails go before heads."""
    sim = Simulation(6, 4)
    a = run_alone_keeping_blocks(sim, text(9))
    b = run_alone_keeping_blocks(sim, text(9, 1))
    assert sim.free_list[-4:] == [a[1], a[0], b[1], b[0]]
    hit = run_alone(sim, text(6), max_tokens=1)
    assert hit.num_cached_tokens == 4
    assert sim.free_list[-4:] == [a[1], b[1], b[0], a[0]]


def run_alone_keeping_blocks(sim: Simulation, prompt: list[int]) -> list[int]:
    """Run to the end; the blocks that it had."""
    handle = sim.submit(prompt, max_tokens=2)
    sim.step()
    blocks = handle.blocks
    sim.run()
    return blocks
