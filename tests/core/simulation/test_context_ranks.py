"""Row 52. A sequence spread over ranks: one block id stands for its tokens on all of them."""

from __future__ import annotations

import pytest

from baseboard.testing import Simulation
from baseboard.testing.model import POISON
from baseboard.testing.ranks import RankedMemory
from core.simulation.texts import as_alone, run_alone, text


def test_each_rank_holds_every_third_token() -> None:
    """Blocks of 4 on 3 ranks: 12 tokens a block, 30 tokens in 3 blocks, the last half full."""
    sim = Simulation(8, 4, context_ranks=3)
    h = sim.submit(text(30), max_tokens=4)
    sim.step()
    memory = sim.device.memory
    assert isinstance(memory, RankedMemory)
    assert len(h.blocks) == 3
    for number, rank in enumerate(memory.ranks):
        held = [slot for block in h.blocks for slot in rank.device_block(block) if slot != POISON]
        assert [slot.position for slot in held] == list(range(number, 30, 3))
    sim.run()
    assert as_alone(sim, h)


def test_room_and_hits_are_counted_in_blocks_of_all_ranks() -> None:
    sim = Simulation(4, 4, context_ranks=2)
    first = run_alone(sim, text(32))
    assert (first.finish_reason, len(first.tokens)) == ("length", 1), "4 blocks of 8 tokens"
    again = run_alone(sim, text(32))
    assert again.num_cached_tokens == 24


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_forks_copies_and_swaps_reach_every_rank(mode: str) -> None:
    sim = Simulation(6, 2, context_ranks=2, num_host_blocks=12, preemption=mode, copy_latency=2)
    handles = [sim.submit(text(5 + at, at), max_tokens=9, n=2, seed=at) for at in range(3)]
    copies = 0
    while sim.scheduler.num_unfinished:
        copies += len(sim.step().copies)
    assert copies
    assert sim.stats.num_preemptions
    assert as_alone(sim, *[sample for h in handles for sample in h.samples])
    assert (sim.free_blocks, sim.free_host_blocks) == (6, 12)
