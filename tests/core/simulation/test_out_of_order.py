"""Row 37: a device that may run a later step before an earlier one."""

from __future__ import annotations

import pytest

from baseboard.kv.limbo import LimboPool
from baseboard.request.status import Status
from baseboard.testing import Simulation
from core.simulation.texts import as_alone, run_until, text


def test_a_block_given_back_while_a_step_may_still_write_to_it_rests_until_that_has_landed() -> None:
    """R0 is aborted with a step under way that writes to its third block; R1 is planned before that has landed."""
    sim = Simulation(6, 4, pipeline_depth=1, device_in_order=False, prefix_caching=False)
    r0 = sim.submit(text(11), max_tokens=20)
    run_until(sim, r0, 1)
    old = set(r0.blocks)
    sim.abort(r0)
    assert (sim.free_blocks, sim.scheduler.kv.pool.num_coming) == (3, 3)
    r1 = sim.submit(text(12, 1), max_tokens=3)
    sim.step()
    assert not old & set(r1.blocks)
    assert (sim.free_blocks, sim.scheduler.kv.pool.num_coming) == (3, 0)
    sim.run()
    assert as_alone(sim, r1)


def test_the_same_device_spoils_a_pool_that_is_made_for_devices_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test kit's device is nasty enough: without resting blocks the late write lands in R1's text."""
    monkeypatch.setattr(LimboPool, "_free", LimboPool.__mro__[1]._free)
    sim = Simulation(3, 4, pipeline_depth=1, device_in_order=False, prefix_caching=False)
    r0 = sim.submit(text(11), max_tokens=20)
    run_until(sim, r0, 1)
    sim.abort(r0)
    r1 = sim.submit(text(11, 1), max_tokens=2)
    sim.run()
    assert not as_alone(sim, r1)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_crowd_in_too_small_a_pool_gets_the_tokens_it_gets_alone(depth: int, preemption: str) -> None:
    sim = Simulation(
        14, 4, num_host_blocks=10, pipeline_depth=depth, preemption=preemption, device_in_order=False, copy_latency=2
    )
    handles = [sim.submit(text(9, key), max_tokens=14, n=1 + key % 2, seed=key) for key in range(6)]
    sim.run()
    assert as_alone(sim, *[sample for h in handles for sample in h.samples])
    assert sim.stats.num_preemptions > 0
    assert sim.free_blocks == 14


def test_nobody_is_evicted_for_blocks_that_are_on_their_way() -> None:
    """R1 needs a block, one is resting: it waits a step, and R2, the worst, keeps its own."""
    sim = Simulation(6, 4, pipeline_depth=1, device_in_order=False, prefix_caching=False)
    gone = sim.submit(text(4, 3), max_tokens=9)
    r1, r2 = sim.submit(text(8), max_tokens=5), sim.submit(text(8, 1), max_tokens=5)
    sim.step()
    sim.abort(gone)
    assert (sim.free_blocks, sim.scheduler.kv.pool.num_coming) == (1, 1)
    assert set(sim.step().ids) == {r1.id}, "the free block is its; for R2 there is none yet"
    assert (r2.status, r2.num_preemptions) == (Status.RUNNING, 0)
    sim.run()
    assert (r1.num_preemptions, r2.num_preemptions) == (0, 0)
    assert as_alone(sim, r1, r2)


def test_a_cached_block_that_rests_can_be_hit() -> None:
    sim = Simulation(8, 4, pipeline_depth=1, device_in_order=False)
    r0 = sim.submit(text(10), max_tokens=20)
    run_until(sim, r0, 1)
    head = r0.blocks[:2]
    sim.abort(r0)
    assert sim.scheduler.kv.pool.num_coming == 3
    r1 = sim.submit(text(10), max_tokens=3)
    sim.step()
    assert (r1.blocks[:2], r1.num_cached_tokens) == (head, 8)
    sim.run()
    assert as_alone(sim, r1)


def test_nothing_rests_on_a_device_in_order() -> None:
    sim = Simulation(6, 4, pipeline_depth=1)
    r0 = sim.submit(text(11), max_tokens=20)
    run_until(sim, r0, 1)
    sim.abort(r0)
    assert (sim.free_blocks, sim.scheduler.kv.pool.num_coming) == (6, 0)


def test_a_failing_step_lets_blocks_come_back() -> None:
    sim = Simulation(6, 4, pipeline_depth=2, device_in_order=False)
    h, other = sim.submit(text(6), max_tokens=9), sim.submit(text(6, 1), max_tokens=9)
    sim.step()
    sim.fail_next_step()
    sim.run()
    assert {h.finish_reason, other.finish_reason} == {"error"}
    assert (sim.free_blocks, sim.scheduler.kv.pool.num_coming) == (6, 0)


def test_blocks_taken_back_for_one_do_not_go_to_the_next_prompt_when_they_come() -> None:
    """A needs a third block and takes B's two, which rest for a step; B, whose prompts come first, would have them
    again as soon as they are free, and lose them again to A, for ever.
    """
    sim = Simulation(4, 4, pipeline_depth=1, device_in_order=False, policy="prefill_first", prefix_caching=False)
    a, b = sim.submit(text(8), max_tokens=6), sim.submit(text(6, 1), max_tokens=2)
    sim.run(max_steps=30)
    assert (a.num_preemptions, b.num_preemptions) == (0, 1)
    assert as_alone(sim, a, b)


def test_a_fork_shares_no_block_that_a_late_step_of_its_parent_writes_to() -> None:
    """The parent has 5 tokens landed and writes on in its second block; preempted, it writes there late."""
    sim = Simulation(16, 4, pipeline_depth=2, device_in_order=False, prefix_caching=False)
    parent = sim.submit(text(4), max_tokens=9)
    run_until(sim, parent, 1)
    child = sim.fork(parent)
    assert (child.num_computed_tokens, child.blocks) == (4, parent.blocks[:1])
    sim.script(child, [*child.tokens, 90, 91, 92])
    sim.preempt(parent)
    sim.run()
    assert child.tokens[1:4] == [90, 91, 92]
    assert as_alone(sim, parent, child)


def test_a_fork_shares_nothing_where_the_window_has_moved_past_its_whole_blocks() -> None:
    """10 tokens have landed, 8 of them in whole blocks; but token 8 sees token 2, whose block is given back."""
    sim = Simulation(16, 4, pipeline_depth=1, device_in_order=False, prefix_caching=False, layer_windows=(7,))
    parent = sim.submit(text(10), max_tokens=9)
    run_until(sim, parent, 1)
    assert parent.num_in_flight == 1
    child = sim.fork(parent)
    assert (child.status, child.blocks) == (Status.WAITING, [])
    sim.run()
    assert as_alone(sim, parent, child)
