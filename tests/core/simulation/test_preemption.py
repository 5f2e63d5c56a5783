"""Taking blocks back and coming back: victims, recompute, swap."""

from __future__ import annotations

import pytest

from baseboard.kv.group import PoolShape
from baseboard.kv.manager import KVCacheManager
from baseboard.kv.prefix import PrefixIndex
from baseboard.request.status import Status
from baseboard.testing import Simulation
from core.simulation.texts import as_alone, run_until, text


def test_the_victim_is_in_no_part_of_the_plan() -> None:
    """Scenario 5: B is served first and takes the last block; A, the worst, gives up its own."""
    sim = Simulation(5, 4, policy="priority", max_num_batched_tokens=16)
    a = sim.submit(text(8), max_tokens=12, request_id="A", priority=5)
    b = sim.submit(text(8, 1), max_tokens=12, request_id="B", priority=0)
    assert sim.step().tokens == {"B": 8, "A": 8}
    plan = sim.step()
    assert plan.tokens == {"B": 1}
    assert (plan.entered, plan.kv_ops, plan.zeroes, plan.retired) == ((), (), (), ("A",))
    assert [update.id for update in plan.updates] == ["B"]
    assert (a.num_computed_tokens, a.blocks, a.status) == (0, [], Status.PREEMPTED)
    assert sim.free_blocks == 2
    while b.finish_reason is None:
        assert a.id not in sim.step().tokens
    sim.run()
    assert as_alone(sim, a, b)


def test_a_victim_frees_blocks_not_tokens() -> None:
    """Scenario 32: R2 and R3 share a block and own one each; evicting R3 frees one block, though it has 20 tokens."""
    sim = Simulation(5, 16, preemption="recompute")
    prefix = text(16, 2)
    r0, r1 = sim.submit(text(15), max_tokens=8), sim.submit(text(15, 1), max_tokens=8)
    r2 = sim.submit([*prefix, 1, 2, 3], max_tokens=8)
    sim.step()
    r3 = sim.submit([*prefix, 4, 5, 6], max_tokens=8)
    sim.step()
    assert [len(h.blocks) for h in (r0, r1, r2, r3)] == [1, 1, 2, 2]
    assert r2.blocks[0] == r3.blocks[0]
    assert sim.free_blocks == 0
    plan = sim.step()
    assert plan.tokens == {r0.id: 1, r1.id: 1}
    assert (r2.status, r3.status) == (Status.PREEMPTED, Status.PREEMPTED)
    assert (sim.stats.num_preemptions, sim.free_blocks) == (2, 1)
    sim.run()
    assert as_alone(sim, r0, r1, r2, r3)


def test_coming_back_begins_after_the_blocks_that_are_still_cached() -> None:
    """Scenario 35: 37 tokens known, two full blocks in the index."""
    sim = Simulation(12, 16)
    r0 = sim.submit(text(32), max_tokens=8)
    run_until(sim, r0, 5)
    sim.preempt(r0)
    plan = sim.step()
    assert (plan.starts, plan.counts) == ((32,), (5,))
    sim.run()
    assert as_alone(sim, r0)


def test_coming_back_after_a_cached_block_was_evicted() -> None:
    """Scenario 35, variant: another request took R0's second block meanwhile."""
    sim = Simulation(4, 16, policy="priority")
    r0 = sim.submit(text(32), max_tokens=8, priority=1)
    run_until(sim, r0, 5)
    sim.preempt(r0)
    other = sim.submit(text(33, 1), max_tokens=1)
    assert sim.step().tokens == {other.id: 33}
    assert sim.stats.evictions == 1
    plan = sim.step()
    assert (plan.starts, plan.counts) == ((16,), (21,))
    sim.run()
    assert as_alone(sim, r0, other)


@pytest.mark.parametrize("total", [15, 16, 17, 31, 32, 33])
@pytest.mark.parametrize("mode", ["recompute", "swap", None])
def test_block_edges_are_crossed_with_exactly_the_blocks_needed(total: int, mode: str | None) -> None:
    """Scenario 36: P=12, preempted with ``total`` tokens, or never."""
    sim = Simulation(8, 16, num_host_blocks=8, prefix_caching=False)
    handle = sim.submit(text(12), max_tokens=30)
    run_until(sim, handle, total - 12)
    if mode is not None:
        sim.preempt(handle, mode)
        if mode == "swap":
            sim.step()
        plan = sim.step()
        computed = total if mode == "recompute" else 1
        assert (plan.starts, plan.counts, plan.samples) == ((total - computed,), (computed,), (1,))
        assert len(handle.tokens) == total - 12 + 1
    while handle.finish_reason is None:
        assert len(handle.blocks) == -(-handle.num_computed_tokens // 16)
        sim.step()
    assert as_alone(sim, handle)


def hold_two_blocks(sim: Simulation) -> object:
    return sim.submit(text(17, 9), max_tokens=12)  # 2 blocks up to its end at 29 tokens


@pytest.mark.parametrize(
    ("caching", "moved"),
    [(False, 10), (True, 1)],  # with the index, 9 full blocks are found on the device
)
def test_a_swapped_request_that_fits_with_its_next_token_comes_in_and_decodes(caching: bool, moved: int) -> None:
    """Scenario 51, first: T=160, 10 blocks are free and 10 are needed."""
    sim = Simulation(12, 16, num_host_blocks=12, prefix_caching=caching)
    holder = hold_two_blocks(sim)
    r0 = sim.submit(text(159), max_tokens=3)
    sim.step()
    sim.preempt(r0, "swap")
    plan = sim.step()
    assert (len(plan.swaps_out), plan.tokens, sim.free_blocks) == (10, {holder.id: 1}, 10)
    assert sim.free_host_blocks == 2
    plan = sim.step()
    assert len(plan.swaps_in) == moved
    assert plan.tokens == {holder.id: 1, r0.id: 1}
    assert (sim.free_blocks, sim.free_host_blocks) == (0, 12)
    sim.run()
    assert as_alone(sim, holder, r0)


def test_a_swapped_request_stays_out_until_its_next_token_fits_too() -> None:
    """Scenario 51, second: T=161 with 160 computed needs 11 blocks and 10 are free."""
    sim = Simulation(12, 16, num_host_blocks=12, prefix_caching=False)
    holder = hold_two_blocks(sim)
    r0 = sim.submit(text(160), max_tokens=3)
    sim.step()
    sim.preempt(r0, "swap")
    moves = []
    while r0.finish_reason is None:
        plan = sim.step()
        moves += [*plan.swaps_in] and [(sim.free_blocks, holder.finish_reason)]
        assert r0.id not in plan.tokens or holder.finish_reason
    assert moves == [(1, "length")]
    assert sim.stats.num_preemptions == 1
    assert as_alone(sim, holder, r0)


def test_cached_copies_of_a_swapped_request_are_reused_and_counted_once() -> None:
    """Scenario 51, third: 10 free of which 8 are its own; for 161 tokens 3 others are needed and 2 are there."""
    kv = KVCacheManager(PoolShape(12, 16), 12, PrefixIndex())
    tokens = text(161)
    kv.open("r0")
    assert kv.extend("r0", 0, 160) is not None
    kv.settle("r0", tokens, 160)
    own = list(kv.held("r0"))
    assert len(kv.swap_out("r0") or ()) == 10
    for holder, count in (("evicts two", 4), ("holds two", 2)):
        kv.open(holder)
        assert kv.extend(holder, 0, 16 * count) is not None
        if count == 4:
            kv.close(holder)
    assert kv.pool.num_free == 10
    assert kv.index.num_entries == 8
    assert kv.swap_in("r0", 161) is None
    assert kv.pool.num_free == 10
    assert kv.host.num_free == 2
    kv.close("holds two")
    moved = kv.swap_in("r0", 161)
    assert moved is not None
    assert [pair.source for pair in moved] == [8, 9]
    assert list(kv.held("r0"))[:8] == own[:8]
    assert kv.extend("r0", 160, 1) is not None
    kv.check()


@pytest.mark.parametrize("preemption", ["recompute", "swap", "auto"])
@pytest.mark.parametrize("depth", [0, 2])
def test_a_pool_too_small_for_all_serves_all(preemption: str, depth: int) -> None:
    """Scenario 85: four requests that need 38 blocks each in the end, 64 blocks in all."""
    sim = Simulation(64, 16, num_host_blocks=40, preemption=preemption, pipeline_depth=depth, prefix_caching=False)
    handles = [sim.submit(text(200, key), max_tokens=400) for key in range(4)]
    sim.run(max_steps=3000)
    assert [len(h.tokens) for h in handles] == [400] * 4
    assert as_alone(sim, *handles)
    assert {h.finish_reason for h in handles} == {"length"}
    assert sim.stats.num_preemptions > 0
    assert (sim.free_blocks, sim.free_host_blocks) == (64, 40)


def test_a_full_host_pool_means_recompute() -> None:
    sim = Simulation(8, 4, num_host_blocks=1, preemption="swap")
    r0 = sim.submit(text(8), max_tokens=4)
    run_until(sim, r0, 2)
    sim.preempt(r0, "swap")
    assert r0.status is Status.PREEMPTED
    assert sim.step().swaps_out == ()
    sim.run()
    assert as_alone(sim, r0)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_nobody_new_starts_in_a_step_that_preempted(mode: str) -> None:
    sim = Simulation(5, 4, num_host_blocks=5, preemption=mode, max_num_seqs=3)
    r0, r1 = sim.submit(text(8), max_tokens=8), sim.submit(text(8, 1), max_tokens=8)
    sim.step()
    r2 = sim.submit(text(2, 2), max_tokens=1)
    assert sim.free_blocks == 1
    plan = sim.step()
    assert plan.tokens == {r0.id: 1}
    assert sim.free_blocks == 2
    started = {}
    while sim.stats.tracked_requests:
        for name in sim.step().tokens:
            started.setdefault(name, len(started))
    assert started[r1.id] < started[r2.id], "a request that had begun is overtaken by a new one"
    assert as_alone(sim, r0, r1, r2)


def test_auto_swaps_what_is_long_and_recomputes_what_is_short() -> None:
    """In the simulation a token costs what a block's move costs: 2 moves a block against 8 tokens a block."""
    sim = Simulation(32, 8, num_host_blocks=32, prefix_caching=False)
    long, short = sim.submit(text(64), max_tokens=3), sim.submit(text(2, 1), max_tokens=3)
    sim.step()
    sim.preempt(long, "auto")
    sim.preempt(short, "auto")
    assert (long.status, short.status) == (Status.SWAPPED, Status.PREEMPTED)
    assert sim.stats.num_swaps_out == 1
    sim.run()
    assert as_alone(sim, long, short)
