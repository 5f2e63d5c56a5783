"""Layers that see a window: blocks out of sight come back, and nothing in sight is ever missing."""

from __future__ import annotations

import pytest

from baseboard.contract.errors import RequestRejected
from baseboard.kv.group import LayerGroup, PoolShape, longest_sequence, windowed_chunk
from baseboard.kv.manager import KVCacheManager
from baseboard.kv.pool import BlockError
from baseboard.kv.prefix import PrefixIndex
from baseboard.testing import Simulation
from core.simulation.texts import as_alone, run_alone, text


def in_sight(computed: int, window: int, block_size: int) -> list[int]:
    """Blocks among those of ``computed`` tokens that the token at position ``computed`` or a later one sees."""
    lowest = computed - window + 1
    return [b for b in range(-(-computed // block_size)) if b * block_size + block_size - 1 >= lowest]


def test_exactly_the_blocks_out_of_sight_are_free() -> None:
    """Scenario 56: window 10, blocks of 4, in every step of a decode."""
    sim = Simulation(64, 4, sliding_window=10)
    h = sim.submit(text(40), max_tokens=20)
    while not h.finish_reason:
        sim.step()
        if not h.finish_reason:
            held = in_sight(h.num_computed_tokens, 10, 4)
            assert len(h.blocks) == len(held) <= -(-(10 + 4 - 1) // 4) + 1
            assert sim.free_blocks == 64 - len(held)
            (table,) = sim.scheduler.kv.tables(h.id)
            assert [at for at, block in enumerate(table) if block] == held
    assert as_alone(sim, h)


def test_a_hit_needs_only_what_is_in_sight() -> None:
    """Scenario 56: the same prompt again, then one that shares 24 tokens."""
    sim = Simulation(64, 4, sliding_window=10)
    run_alone(sim, text(40), max_tokens=20)
    again = sim.submit(text(40), max_tokens=20)
    sim.step()
    assert again.num_cached_tokens == 36
    assert len(again.blocks) == 3, "blocks 6 to 8 were hit, 9 is new, and token 40 sees no further than 7"
    sim.run()
    other = sim.submit(text(24) + text(16, 3), max_tokens=20)
    sim.run()
    assert other.num_cached_tokens == 24
    assert as_alone(sim, again, other)


@pytest.mark.parametrize(
    ("missing", "hit"),
    [(0, 36), (5, 36), (6, 24), (7, 28), (8, 32)],
    ids=["a hole far before", "a hole just before", "the first in sight", "the middle", "the last"],
)
def test_a_hole_before_the_window_is_fine(missing: int, hit: int) -> None:
    """Scenario 56: token 36 sees tokens 27 to 35, which are in blocks 6, 7 and 8."""
    kv = KVCacheManager(PoolShape(32, 4), 0, PrefixIndex(), (LayerGroup(10),))
    kv.open("x")
    assert kv.extend("x", 0, 40) is not None
    (table,) = kv.tables("x")
    kv.settle("x", text(40), 40)
    kv.index.forget(table[missing])
    kv.open("y")
    found = kv.match("y", text(40))
    assert found.num_tokens == hit
    first = max(hit - 10 + 1, 0) // 4
    assert found.tables == ((0,) * first + table[first : hit // 4],)


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("host", [0, 16])
def test_samples_with_a_window(depth: int, host: int) -> None:
    """Scenario 48: window 8, blocks of 4, two samples of 40 tokens, blocks kept for a store at the end."""
    sim = Simulation(24, 4, sliding_window=8, num_host_blocks=host, pipeline_depth=depth)
    h = sim.submit(text(13), max_tokens=40, n=2, seed=3)
    sim.connector.store(h, latency=3)
    for _ in range(20):
        sim.step()
    sim.preempt(h.samples[1], "swap" if host else "recompute")
    sim.run()
    assert as_alone(sim, *h.samples)
    for _ in range(4):
        sim.step()
    assert (sim.free_blocks, sim.free_host_blocks) == (24, host)


def test_wrong_releases_are_named() -> None:
    """Scenario 48: a duplicate, a free block, the null block."""
    pool = KVCacheManager(PoolShape(4, 4), 0, PrefixIndex()).pool
    (block,) = pool.allocate(1)
    with pytest.raises(BlockError, match=f"'x' releases block {block} twice"):
        pool.release([block, block], "x")
    pool.release([0, block], "x")
    assert pool.num_free == 4
    with pytest.raises(BlockError, match=f"'x' releases block {block}, which is free already"):
        pool.release([block], "x")


@pytest.mark.parametrize("windows", [(6,), (None, 6), (6, None, 3)])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_groups_with_windows_of_their_own(windows: tuple[int | None, ...], mode: str) -> None:
    """Row 35. A pool that is too small for three: blocks are taken back and every text is what it is alone."""
    sim = Simulation(
        36, 2, layer_windows=windows, num_host_blocks=64, preemption=mode, max_num_batched_tokens=16, num_draft_tokens=2
    )
    handles = [sim.submit(text(9 + at, at), max_tokens=12) for at in range(6)]
    sim.run()
    assert as_alone(sim, *handles)
    assert (sim.free_blocks, sim.free_host_blocks) == (36, 64)


def test_a_window_serves_what_the_pool_could_not_hold_whole() -> None:
    """12 blocks of 4 hold 48 tokens; with a window of 8 a sequence of 400 goes through them."""
    sim = Simulation(12, 4, sliding_window=8)
    h = sim.submit(text(300), max_tokens=100)
    sim.run()
    assert len(h.tokens) == 100
    assert as_alone(sim, h)


def test_what_does_not_fit_beside_a_whole_group_is_refused() -> None:
    sim = Simulation(12, 4, layer_windows=(None, 8), max_num_batched_tokens=4)
    # A chunk of 4 behind a window of 8 takes at most 4 blocks; 8 are left for all tokens.
    with pytest.raises(RequestRejected, match="the prompt has 33 tokens, but the whole KV pool holds 32"):
        sim.submit(text(33))
    h = sim.submit(text(32), max_tokens=4)
    sim.run()
    assert (len(h.tokens), h.finish_reason) == (1, "length")


def test_a_pool_without_a_block_for_each_group_is_refused() -> None:
    with pytest.raises(ValueError, match=r"num_blocks=2 is too few.* 3 layer groups"):
        Simulation(2, 4, layer_windows=(None, 8, 4))


def test_the_plan_says_which_entries_are_null() -> None:
    sim = Simulation(32, 4, sliding_window=4, max_num_batched_tokens=8)
    h = sim.submit(text(24), max_tokens=8)
    tables: dict[str, list[int]] = {}
    while not h.finish_reason:
        plan = sim.step()
        for state in plan.entered:
            tables[state.id] = list(state.tables[0])
        for update in plan.updates:
            tables[update.id][update.first : update.first + len(update.blocks)] = update.blocks
        if plan.ids:
            out_of_sight = max(plan.starts[0] - 3, 0) // 4
            null = [at for at, block in enumerate(tables[h.id]) if not block]
            # Told with the next block that is added, so up to one behind; never one that is in sight.
            assert null in (list(range(out_of_sight)), list(range(out_of_sight - 1)))


@pytest.mark.parametrize(
    ("group", "num_tokens", "underway", "blocks"),
    [
        (LayerGroup(), 17, 1, 5),
        (LayerGroup(8), 17, 1, 3),  # 7 before and one new: at worst 1 + 4 + 3 of them, over three blocks
        (LayerGroup(9), 100, 4, 4),
        (LayerGroup(1), 100, 1, 2),
        (LayerGroup(8), 5, 64, 2),
    ],
)
def test_blocks_at_the_worst_moment(group: LayerGroup, num_tokens: int, underway: int, blocks: int) -> None:
    assert group.most_blocks(num_tokens, 4, underway) == blocks


def test_chunks_leave_half_the_pool() -> None:
    pool = PoolShape(20, 4)
    assert windowed_chunk([LayerGroup(9)], pool, 2048, num_steps=1) == 16  # 9 + 16 - 1 tokens: 7 blocks; 32: 11
    assert windowed_chunk([LayerGroup(9)], pool, 2048, num_steps=2) == 8
    assert windowed_chunk([LayerGroup(900)], pool, 2048, num_steps=1) == 1
    assert longest_sequence([LayerGroup(900)], pool, 1) == 80, "all of it in sight"


@pytest.mark.parametrize("prompt", [12, 13, 14, 15])
def test_a_fork_shares_nothing_where_its_window_is_gone(prompt: int) -> None:
    """A copy of the last block is under way, so a fork could go on from that block's first token only."""
    sim = Simulation(64, 4, sliding_window=4, pipeline_depth=1)
    parent = sim.submit(text(prompt), max_tokens=24)
    copied = False
    forks = []
    for _ in range(12):
        copied |= bool(sim.step().copies)
        if parent.tokens:
            forks.append(sim.fork(parent))
    assert copied
    sim.run()
    assert as_alone(sim, parent, *forks)
