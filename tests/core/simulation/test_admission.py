"""Who is let in, and when: whole contexts, exact capacity, places, budgets."""

from __future__ import annotations

import pytest

from baseboard.contract.errors import RequestRejected
from baseboard.request.status import Status
from baseboard.testing import Simulation
from core.simulation.texts import as_alone, run_alone, run_until, text


def test_a_long_prompt_starts_only_once_all_of_it_has_room() -> None:
    """Scenario 1: R1 needs 35 blocks, 34 are free while R0 runs."""
    sim = Simulation(64, 16, prefix_caching=False, max_num_batched_tokens=256, max_num_seqs=8)
    r0 = sim.submit(text(480), max_tokens=200)
    run_until(sim, r0, 1)
    assert sim.free_blocks == 34
    r1 = sim.submit(text(560, 1), max_tokens=8)
    computed = []
    while r0.finish_reason is None:
        assert sim.step().tokens == {r0.id: 1}
    while r1.finish_reason is None:
        computed.append(sim.step().tokens[r1.id])
    assert computed == [256, 256, 48] + [1] * 7
    assert (r0.num_preemptions, r1.num_preemptions) == (0, 0)
    assert as_alone(sim, r0, r1)


def test_a_prompt_that_loses_the_race_for_blocks_is_put_back_once() -> None:
    """Scenario 2: R1's 12 blocks fit exactly, until R0 needs its 9th at 129 tokens."""
    sim = Simulation(20, 16, prefix_caching=False, max_num_batched_tokens=64)
    r0 = sim.submit(text(120), max_tokens=60)
    run_until(sim, r0, 6)
    assert len(r0.blocks) == 8
    r1 = sim.submit(text(190, 1), max_tokens=4)
    chunks, free_at_start = [], []
    while r1.finish_reason is None:
        free = sim.free_blocks
        plan = sim.step()
        assert r0.finish_reason or plan.tokens.get(r0.id) == 1
        if r1.id in plan.tokens:
            chunks.append(plan.tokens[r1.id])
            if plan.starts[plan.ids.index(r1.id)] == 0:
                free_at_start.append(free)
    assert chunks == [63, 63, 63, 64, 64, 62, 1, 1, 1]
    assert free_at_start[0] == 12
    assert free_at_start[1] >= 12
    assert r1.num_preemptions == 1
    assert as_alone(sim, r0, r1)


def test_a_prompt_that_can_never_fit_is_refused_with_the_servable_length() -> None:
    """Scenario 3: 30 blocks hold 480 tokens; the null block comes on top."""
    sim = Simulation(30, 16)
    with pytest.raises(RequestRejected, match=r"481 tokens, but the whole KV pool holds 480"):
        sim.submit(text(481), max_tokens=1)
    r1 = sim.submit(text(16), max_tokens=4)
    assert sim.run() <= 5
    r2 = run_alone(sim, text(480, 1), max_tokens=1)
    assert len(r2.tokens) == 1
    assert as_alone(sim, r1, r2)


def test_a_request_that_would_outgrow_the_pool_ends_with_length() -> None:
    """Scenario 3, R3: 480 tokens fill the pool, a second output would need a slot more."""
    sim = Simulation(30, 16)
    r3 = run_alone(sim, text(480), max_tokens=2)
    assert r3.tokens == sim.solo(r3)[:1]
    assert r3.finish_reason == "length"


def test_a_sole_request_that_fills_the_pool_ends_and_leaves_it_whole() -> None:
    """Scenario 4: 24 tokens take all 3 blocks of 8; the next request uses them."""
    sim = Simulation(3, 8)
    r0 = sim.submit(text(24), max_tokens=5)
    sim.step()
    assert len(r0.tokens) == 1
    assert r0.finish_reason == "length"
    assert sim.free_blocks == 3
    r1 = run_alone(sim, text(8, 1), max_tokens=9)
    assert len(r1.tokens) == 9
    assert as_alone(sim, r1)


def test_running_requests_take_the_places_there_are() -> None:
    """Scenario 10: R2 waits while two run, though blocks and budget are plentiful."""
    sim = Simulation(64, 16, max_num_seqs=2)
    r0, r1 = sim.submit(text(8), max_tokens=4), sim.submit(text(8, 1), max_tokens=9)
    sim.step()
    r2 = sim.submit(text(8, 2), max_tokens=2)
    for _ in range(3):
        assert sim.step().tokens == {r0.id: 1, r1.id: 1}
    assert r2.status is Status.WAITING
    assert sim.step().tokens == {r1.id: 1, r2.id: 8}
    sim.run()
    assert as_alone(sim, r0, r1, r2)


def test_a_free_place_is_taken_by_one_prompt_over_several_chunks() -> None:
    """Scenario 10, second half: R2's prompt is longer than the budget; R0 gets a token in each step."""
    sim = Simulation(64, 16, max_num_seqs=2, max_num_batched_tokens=16)
    r0 = sim.submit(text(8), max_tokens=30)
    sim.step()
    r2, r3 = sim.submit(text(40, 1), max_tokens=3), sim.submit(text(4, 2), max_tokens=1)
    assert [sim.step().tokens for _ in range(4)] == [
        {r0.id: 1, r2.id: 15},
        {r0.id: 1, r2.id: 15},
        {r0.id: 1, r2.id: 10},
        {r0.id: 1, r2.id: 1},
    ]
    sim.run()
    assert as_alone(sim, r0, r2, r3)


def test_a_lower_limit_for_active_requests_holds_below_the_rows() -> None:
    sim = Simulation(64, 16, max_num_seqs=8, max_num_active_seqs=2)
    handles = [sim.submit(text(4, key), max_tokens=3) for key in range(5)]
    sizes = []
    while sim.stats.tracked_requests:
        sizes.append(len(sim.step().ids))
    assert max(sizes) == 2
    assert as_alone(sim, *handles)
    with pytest.raises(RequestRejected, match=r"n=3 samples need as many places, but max_num_active_seqs=2"):
        sim.submit(text(4), n=3)


def test_the_last_prompt_token_below_the_model_limit_is_computed() -> None:
    """Scenario 15a: max_model_len 64, 63 tokens in, one out."""
    sim = Simulation(64, 16, max_model_len=64, max_num_batched_tokens=16)
    handle = sim.submit(text(63), max_tokens=10)
    assert [sim.step().num_tokens for _ in range(4)] == [16, 16, 16, 15]
    assert len(handle.tokens) == 1
    assert handle.finish_reason == "length"


@pytest.mark.parametrize("num_prompt", [64, 65])
def test_a_prompt_that_leaves_no_room_for_an_output_is_refused(num_prompt: int) -> None:
    """Scenario 15b: the limit and the given length are both named."""
    sim = Simulation(64, 16, max_model_len=64)
    with pytest.raises(RequestRejected, match=rf"{num_prompt} tokens, but max_model_len=64"):
        sim.submit(text(num_prompt), max_tokens=1)
    assert sim.stats.tracked_requests == 0


def test_the_model_limit_counts_prompt_and_outputs() -> None:
    """Scenario 15c."""
    sim = Simulation(64, 16, max_model_len=64, max_num_batched_tokens=16)
    assert len(run_alone(sim, text(62), max_tokens=2).tokens) == 2


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_planning_ahead_never_passes_the_model_limit(depth: int) -> None:
    """Scenario 15e without drafts: exactly 4 tokens, and no position from 63 on is computed."""
    sim = Simulation(64, 16, max_model_len=64, max_num_batched_tokens=16, pipeline_depth=depth)
    handle = sim.submit(text(60), max_tokens=10)
    ends = []
    while handle.finish_reason is None:
        plan = sim.step()
        ends += [start + count for start, count in zip(plan.starts, plan.counts, strict=True)]
    assert ends == [16, 32, 48, 60, 61, 62, 63]
    assert len(handle.tokens) == 4
    assert as_alone(sim, handle)


def test_blocks_kept_for_their_content_count_as_free() -> None:
    """Scenario 30: 38 of 40 blocks are cached and unreferenced; a prompt of 20 blocks starts at once."""
    sim = Simulation(40, 16)
    run_alone(sim, text(608))
    assert (sim.cached_blocks, sim.free_blocks) == (38, 40)
    r0 = sim.submit(text(320, 1), max_tokens=4)
    assert sim.step().tokens == {r0.id: 320}
    assert sim.stats.evictions == 18
    sim.run()
    assert as_alone(sim, r0)


def test_tokens_follow_the_hit_at_allocation_and_stay_within_the_budget() -> None:
    """Scenario 31: R0's allocation evicts what R1 was expected to hit; R1 gets what the budget leaves."""
    sim = Simulation(15, 16, max_num_batched_tokens=136)
    run_alone(sim, text(96))
    run_alone(sim, text(144, 1))
    assert (sim.cached_blocks, sim.free_blocks) == (15, 15)
    r0, r1 = sim.submit(text(97, 2), max_tokens=1), sim.submit(text(96) + text(32, 3), max_tokens=2)
    plan = sim.step()
    assert plan.tokens == {r0.id: 97, r1.id: 39}
    assert plan.starts == (0, 0)
    assert r1.num_cached_tokens == 0
    assert sim.stats.evictions == 7 + 3
    sim.run()
    assert as_alone(sim, r0, r1)


def test_hit_blocks_are_held_before_anything_is_evicted() -> None:
    """Scenario 58: chain X is the oldest cached text; 6 blocks in all."""
    sim = Simulation(6, 4)
    chain = text(12)
    run_alone(sim, chain)
    blocks_of_chain = sim.free_list[3:]
    with pytest.raises(RequestRejected, match="28 tokens"):
        sim.submit(chain + text(16, 1), max_tokens=1)
    assert sim.cached_blocks == 3
    r1 = sim.submit(chain + text(12, 2), max_tokens=1)
    plan = sim.step()
    assert r1.num_cached_tokens == 12
    (entered,) = plan.entered
    assert sorted(entered.tables[0][:3]) == sorted(blocks_of_chain)
    assert len(set(entered.tables[0])) == 6
    assert as_alone(sim, r1)


def test_waiting_is_in_strict_order() -> None:
    """Scenario 7, strict first come first served: a small request never passes a big one that waits."""
    sim = Simulation(10, 16, prefix_caching=False)
    r0 = sim.submit(text(96), max_tokens=12)
    sim.step()
    big, small = sim.submit(text(64 + 1, 1), max_tokens=2), sim.submit(text(8, 2), max_tokens=2)
    while r0.finish_reason is None:
        assert sim.step().tokens == {r0.id: 1}
    assert sim.step().tokens == {big.id: 65, small.id: 8}


def test_without_chunks_a_prompt_is_computed_whole_or_not_at_all() -> None:
    sim = Simulation(64, 16, max_num_batched_tokens=32, chunked_prefill=False)
    with pytest.raises(RequestRejected, match=r"33 tokens, but without chunked prefill .*max_num_batched_tokens=32"):
        sim.submit(text(33))
    r0, r1, r2 = (sim.submit(text(20, key), max_tokens=2) for key in range(3))
    assert [sim.step().tokens for _ in range(4)] == [
        {r0.id: 20},
        {r0.id: 1, r1.id: 20},
        {r1.id: 1, r2.id: 20},
        {r2.id: 1},
    ]
    assert as_alone(sim, r0, r1, r2)


def test_without_chunks_a_request_grown_beyond_the_budget_comes_back_in_parts() -> None:
    sim = Simulation(64, 16, max_num_batched_tokens=16, chunked_prefill=False, prefix_caching=False)
    handle = sim.submit(text(14), max_tokens=10)
    run_until(sim, handle, 6)
    sim.preempt(handle)
    assert [sim.step().num_tokens for _ in range(2)] == [16, 4]
    sim.run()
    assert as_alone(sim, handle)


def test_a_long_prompt_leaves_the_rest_of_the_budget_to_others() -> None:
    sim = Simulation(64, 16, max_num_batched_tokens=32, long_prefill_token_threshold=10)
    r0, r1 = sim.submit(text(25), max_tokens=1), sim.submit(text(6, 1), max_tokens=2)
    assert [sim.step().tokens for _ in range(3)] == [{r0.id: 10, r1.id: 6}, {r0.id: 10, r1.id: 1}, {r0.id: 5}]
    assert as_alone(sim, r0, r1)


def test_room_that_a_better_prompt_still_needs_is_not_given_away() -> None:
    """R0 has computed 16 of 64 tokens: 3 more blocks are spoken for, so of the 4 free ones 1 is left for others."""
    sim = Simulation(5, 16, prefix_caching=False, max_num_batched_tokens=24, long_prefill_token_threshold=16)
    r0, two_blocks = sim.submit(text(64), max_tokens=1), sim.submit(text(17, 1), max_tokens=1)
    assert sim.step().tokens == {r0.id: 16}
    sim.abort(two_blocks)
    one_block = sim.submit(text(16, 2), max_tokens=1)
    assert sim.step().tokens == {r0.id: 16, one_block.id: 8}
    sim.run()
    assert as_alone(sim, r0, one_block)
    assert sim.stats.num_preemptions == 0
