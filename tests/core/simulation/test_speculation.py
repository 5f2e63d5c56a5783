"""Drafts: verified in one step, counted, cut to fit, and never seen in a text or in the prefix index."""

from __future__ import annotations

import pytest

from baseboard.testing import Simulation
from core.simulation.texts import as_alone, text


def test_only_accepted_tokens_count_and_are_published() -> None:
    """Scenario 41: B=4, K=3, P=4; step 2 writes positions 4 to 7, one draft is right."""
    sim = Simulation(32, 4, num_draft_tokens=3)
    r0 = sim.submit(text(4), max_tokens=12)
    sim.accept_drafts(r0, [1])
    sim.step()
    plan = sim.step()
    assert plan.tokens == {r0.id: 4}
    assert len(plan.drafts[r0.id]) == 3
    assert r0.num_computed_tokens == 6
    assert len(r0.tokens) == 3
    assert sim.cached_blocks == 1
    written = [r0.tokens[0], *plan.drafts[r0.id]]

    r1 = sim.submit([*text(4), *written, 1], max_tokens=2)
    while len(r0.tokens) < 8:
        sim.step()
    r2 = sim.submit([*text(4), *r0.tokens[:4], 1], max_tokens=2)
    sim.run()
    assert r1.num_cached_tokens == 4  # its second block is what was written, not what was accepted
    assert r2.num_cached_tokens == 8
    assert as_alone(sim, r0, r1, r2)


def test_a_row_with_drafts_gets_room_for_all_of_them_at_once() -> None:
    """Scenario 41: K=5, B=4, P=8 needs positions 8 to 13: two more blocks."""
    sim = Simulation(32, 4, num_draft_tokens=5)
    r0 = sim.submit(text(8), max_tokens=12)
    sim.step()
    assert len(r0.blocks) == 2
    assert sim.step().tokens == {r0.id: 6}
    assert len(r0.blocks) == 4


@pytest.mark.parametrize("depth", [0, 1])
def test_drafts_shrink_at_the_longest_length(depth: int) -> None:
    """Scenario 15 d and e: P=60, max_model_len 64: exactly 4 tokens, nothing at position 64 or beyond is computed."""
    sim = Simulation(16, 16, num_draft_tokens=3, max_model_len=64, max_num_batched_tokens=16, pipeline_depth=depth)
    r0 = sim.submit(text(60), max_tokens=10)
    highest = 0
    while r0.finish_reason is None:
        plan = sim.step()
        highest = max(highest, *(start + count for start, count in zip(plan.starts, plan.counts, strict=True)), 0)
    assert len(r0.tokens) == 4
    assert r0.finish_reason == "length"
    assert highest <= 63
    sim.run()
    assert as_alone(sim, r0)


def test_guesses_take_nobodys_blocks() -> None:
    """Row 34: with one block left for two requests, each goes on without drafts rather than evict the other."""
    sim = Simulation(4, 4, num_draft_tokens=4, prefix_caching=False)
    first, second = sim.submit(text(6), max_tokens=2), sim.submit(text(6, 1), max_tokens=2)
    sim.run()
    assert (first.num_preemptions, second.num_preemptions) == (0, 0)
    assert as_alone(sim, first, second)


def test_drafts_are_cut_to_the_budget() -> None:
    sim = Simulation(64, 4, num_draft_tokens=4, max_num_batched_tokens=6)
    handles = [sim.submit(text(2, at), max_tokens=9) for at in range(3)]
    while any(handle.finish_reason is None for handle in handles):
        assert sim.step().num_tokens <= 6
    assert as_alone(sim, *handles)


def test_acceptance_is_counted() -> None:
    sim = Simulation(64, 4, num_draft_tokens=3)
    r0 = sim.submit(text(4), max_tokens=8)
    sim.accept_drafts(r0, [3, 0, 2])
    sim.run()
    # 1 token from the prompt, then 3 of 3 drafts and one more: 5. Of the 3 that are left one is sampled anyway, so
    # 2 drafts fit; none is right: 6. One draft fits; it is right: 8.
    stats = sim.scheduler.stats
    assert len(r0.tokens) == 8
    assert stats.num_drafts_accepted == 3 + 0 + 1
    assert stats.num_drafts == 3 + 2 + 1


def test_a_stop_token_among_the_accepted_ends_the_text_there() -> None:
    sim = Simulation(64, 4, num_draft_tokens=3)
    r0 = sim.submit(text(4), max_tokens=9, stop_token_ids=[7])
    sim.script(r0, [1, 2, 7, 4, 5])
    sim.accept_drafts(r0, [3])
    sim.run()
    assert r0.tokens == [1, 2, 7]
    assert r0.finish_reason == "stop"
    assert sim.free_blocks == 64


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_preemption_forgets_the_drafts_and_nothing_else(mode: str) -> None:
    sim = Simulation(32, 4, num_draft_tokens=3, num_host_blocks=16, preemption=mode)
    r0 = sim.submit(text(5), max_tokens=12)
    while r0.finish_reason is None:
        sim.step()
        if len(r0.tokens) in {3, 7}:
            sim.preempt(r0, mode=mode)
    assert as_alone(sim, r0)
