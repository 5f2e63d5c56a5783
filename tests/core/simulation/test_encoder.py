"""Encoder inputs: what is made when, what it costs, who keeps it, and that nobody waits for ever."""

from __future__ import annotations

from typing import Any

import pytest

from baseboard.contract.errors import RequestRejected
from baseboard.contract.media import MediaSpan
from baseboard.contract.plan import StepPlan
from baseboard.contract.sampling import SamplingParams
from baseboard.request.request import RequestSpec
from baseboard.testing import Handle, Simulation
from core.scheduler.bench import Bench
from core.simulation.texts import as_alone, text


def made(plan: StepPlan) -> list[Any]:
    return [each.span.content_id for each in plan.encodes]


def chunks(sim: Simulation, handle: Handle) -> list[tuple[int, int]]:
    """Run to the end; (start, count) of each of its rows."""
    rows = []
    while handle.finish_reason is None:
        plan = sim.step()
        rows += [row[1:] for row in zip(plan.ids, plan.starts, plan.counts, strict=True) if row[0] == handle.id]
    return rows


# --- where a chunk is cut -----------------------------------------------------------------------------------------


def test_a_chunk_is_cut_before_an_input_and_never_rounded_down_to_nothing() -> None:
    """Scenario 28: 9 and 8 units do not go into a cache of 10 together."""
    sim = Simulation(16, 16, chunk_alignment=16, encoder_cache_size=10)
    handle = sim.submit(text(40), max_tokens=2, media=[(2, 9, "X", 9), (12, 8, "Y", 8)])
    first = sim.step()
    assert first.tokens == {handle.id: 12}
    assert (made(first), first.encoder_drops) == (["X"], ())
    second = sim.step()
    assert (second.starts, second.counts) == ((12,), (28,))
    assert (made(second), second.encoder_drops) == (["Y"], ("X",))
    assert len(handle.tokens) == 1
    sim.run()
    assert as_alone(sim, handle)


def test_chunks_end_at_multiples_unless_that_leaves_nothing() -> None:
    """Scenario 28: the end of the prompt is not rounded, nor is a chunk that is shorter than the multiple."""
    sim = Simulation(16, 16, chunk_alignment=16, max_num_batched_tokens=40)
    assert chunks(sim, sim.submit(text(70), max_tokens=1)) == [(0, 32), (32, 38)]
    sim = Simulation(16, 16, chunk_alignment=16, max_num_batched_tokens=10)
    assert chunks(sim, sim.submit(text(38), max_tokens=1)) == [(0, 10), (10, 6), (16, 10), (26, 6), (32, 6)]


def test_the_budget_of_a_step_is_spent_best_rank_first() -> None:
    """Row 44: 10 units a step; the second request's input has to wait, and what stands before it does not."""
    sim = Simulation(40, 4, encoder_budget=10)
    first = sim.submit(text(12, 1), max_tokens=2, media=[(0, 6, "X", 6)])
    second = sim.submit(text(12, 2), max_tokens=2, media=[(4, 6, "Y", 5)])
    third = sim.submit(text(12, 3), max_tokens=2, media=[(0, 6, "Z", 1)])
    plan = sim.step()
    assert plan.tokens == {first.id: 12, second.id: 4}  # 4 units are left, but nobody passes the second
    assert made(plan) == ["X"]
    plan = sim.step()
    assert plan.tokens == {first.id: 1, second.id: 8, third.id: 12}
    assert made(plan) == ["Y", "Z"]
    sim.run()
    assert as_alone(sim, first, second, third)


def test_an_input_may_be_computed_in_parts_and_is_kept_meanwhile() -> None:
    """Row 44: 14 positions at 4 tokens a step, made once."""
    sim = Simulation(40, 4, max_num_batched_tokens=4, encoder_cache_size=5)
    handle = sim.submit(text(18), max_tokens=1, media=[(1, 14, "X", 5)])
    held = []
    made_in = []
    for step in range(5):
        made_in += [step] * len(sim.step().encodes)
        held.append(sim.encoder.cache.units_held)
    assert made_in == [0]
    assert held == [5, 5, 5, 0, 0]  # tokens 12 to 15 hold its last position
    assert as_alone(sim, handle)


def test_an_input_that_is_not_to_be_split_is_computed_as_a_whole() -> None:
    """Row 44."""
    sim = Simulation(40, 4, max_num_batched_tokens=8, split_inputs=False)
    handle = sim.submit(text(20), max_tokens=1, media=[(3, 7, "X", 7), (12, 8, "Y", 8)])
    assert chunks(sim, handle) == [(0, 3), (3, 8), (11, 1), (12, 8)]
    assert as_alone(sim, handle)


def test_an_input_that_is_not_to_be_split_waits_for_a_step_that_takes_it() -> None:
    """Row 44: beside the decoding request 7 tokens of 8 are left, one too few; then all 8."""
    sim = Simulation(40, 4, max_num_batched_tokens=8, split_inputs=False)
    first = sim.submit(text(4, 1), max_tokens=3)
    sim.step()
    second = sim.submit(text(8, 2), max_tokens=1, media=[(0, 8, "X", 8)])
    assert sim.step().tokens == {first.id: 1}
    assert sim.step().tokens == {first.id: 1}
    assert sim.step().tokens == {second.id: 8}
    assert as_alone(sim, first, second)


def test_without_chunked_prefill_a_prompt_gets_all_its_inputs_or_waits() -> None:
    """Rows 7 and 44."""
    sim = Simulation(40, 4, chunked_prefill=False, encoder_budget=10)
    first = sim.submit(text(10, 1), max_tokens=2, media=[(0, 4, "X", 4)])
    second = sim.submit(text(10, 2), max_tokens=2, media=[(1, 2, "Y", 3), (4, 4, "Z", 4)])
    assert sim.step().tokens == {first.id: 10}
    assert sim.step().tokens == {first.id: 1, second.id: 10}
    sim.run()
    assert as_alone(sim, first, second)


def test_an_input_of_one_position_at_the_very_end_gets_no_short_cut() -> None:
    """Row 44: the one token that is left of a prompt looks like the next token of a decoding request."""
    sim = Simulation(40, 16, max_num_batched_tokens=7)
    handle = sim.submit(text(8), max_tokens=3, media=[(7, 1, "X", 1)])
    assert made(sim.step()) == []
    plan = sim.step()
    assert (plan.tokens, made(plan)) == ({handle.id: 1}, ["X"])
    sim.run()
    assert as_alone(sim, handle)


# --- who keeps what -----------------------------------------------------------------------------------------------


def test_an_input_is_made_once_for_all_who_have_it() -> None:
    """Row 44: shared by content id, in the same step, in a later one, and twice in one prompt."""
    sim = Simulation(60, 4, encoder_budget=6, prefix_caching=False)
    first = sim.submit(text(12, 1), max_tokens=2, media=[(0, 4, "X", 6), (5, 4, "X", 6)])
    second = sim.submit(text(12, 2), max_tokens=2, media=[(3, 4, "X", 6)])
    plan = sim.step()
    assert (plan.tokens, made(plan)) == ({first.id: 12, second.id: 12}, ["X"])
    third = sim.submit(text(12, 3), max_tokens=2, media=[(3, 4, "X", 6)])
    assert made(sim.step()) == []
    sim.run()
    assert sim.encoder.stats.num_computed == 1
    assert as_alone(sim, first, second, third)


def test_what_a_row_needs_is_not_given_up_for_what_else_it_needs() -> None:
    """Row 44: X and Z are there, idle; Y and X are needed, and Y takes the room of Z though X is older."""
    sim = Simulation(60, 4, encoder_budget=5, encoder_cache_size=10, prefix_caching=False)
    for content in "XZ":
        sim.submit(text(8), max_tokens=1, media=[(0, 4, content, 4)])
        sim.run()
    handle = sim.submit(text(12), max_tokens=2, media=[(0, 4, "Y", 5), (4, 4, "X", 4)])
    plan = sim.step()
    assert (plan.tokens, made(plan), plan.encoder_drops) == ({handle.id: 12}, ["Y"], ("Z",))
    sim.run()
    assert as_alone(sim, handle)


def test_contents_that_differ_in_the_highest_bit_only_are_two() -> None:
    """Scenario 46."""
    sim = Simulation(60, 4)
    handles = [sim.submit([5] * 8, max_tokens=4, media=[(0, 8, content, 1)]) for content in (1, 1 + 2**127)]
    assert made(sim.step()) == [1, 1 + 2**127]
    sim.run()
    assert as_alone(sim, *handles)
    assert handles[0].tokens != handles[1].tokens


def test_what_a_step_makes_is_let_go_when_its_result_is_in() -> None:
    """Row 44: with a plan under way the first input is still held, though its last position is planned."""
    sim = Simulation(40, 4, pipeline_depth=1, encoder_cache_size=10)
    sim.submit(text(8, 1), max_tokens=1, media=[(0, 4, "X", 6)])
    late = sim.submit(text(8, 2), max_tokens=1, media=[(0, 4, "Y", 6)])
    assert made(sim.step()) == ["X"]
    assert made(sim.step()) == []  # the result of the first plan comes in after this one was made
    plan = sim.step()
    assert (made(plan), plan.encoder_drops) == (["Y"], ("X",))
    sim.run()
    assert as_alone(sim, late)


@pytest.mark.parametrize("event", ["preempt", "swap", "abort", "fail", "reset"])
def test_whoever_loses_its_row_lets_its_inputs_go(event: str) -> None:
    """Rows 18 and 44, scenario 27."""
    sim = Simulation(40, 4, max_num_batched_tokens=4, encoder_cache_size=8, num_host_blocks=8)
    handle = sim.submit(text(12), max_tokens=2, media=[(2, 8, "X", 8)])
    sim.step()
    assert sim.encoder.cache.units_held == 8
    {
        "preempt": lambda: sim.preempt(handle),
        "swap": lambda: sim.preempt(handle, "swap"),
        "abort": lambda: sim.abort(handle),
        "fail": lambda: (sim.fail_next_step(), sim.step()),
        "reset": lambda: sim.reset_prefix_cache(preempt=True),
    }[event]()
    assert sim.encoder.cache.units_held == 0
    other = sim.submit(text(8, 3), max_tokens=2, media=[(0, 8, "Y", 8)])
    sim.run()
    assert as_alone(sim, other)
    assert event in {"abort", "fail"} or as_alone(sim, handle)


def test_whoever_had_no_row_in_a_step_keeps_nothing_for_the_next() -> None:
    """Scenario 27: X (8 units) is half computed when a better request takes all tokens, and then needs Y (8)."""
    sim = Simulation(40, 4, max_num_batched_tokens=4, encoder_cache_size=10)
    sim.encoder_source.offer("W", latency=1)
    better = sim.submit(text(16, 1), max_tokens=2, media=[(4, 4, "W", 2), (8, 8, "Y", 8)])
    worse = sim.submit(text(12, 2), max_tokens=2, media=[(2, 8, "X", 8)])
    assert sim.step().tokens == {better.id: 4}
    assert sim.step().tokens == {worse.id: 4}  # W is on its way
    assert sim.step().tokens == {better.id: 4}
    plan = sim.step()
    assert (plan.tokens, made(plan), plan.encoder_drops) == ({better.id: 4}, ["Y"], ("W", "X"))
    sim.run()
    assert as_alone(sim, worse, better)


def test_a_reset_drops_what_was_made_before_it() -> None:
    """Row 30: after new weights nothing that the old ones made is used, not even by who is in the middle of it."""
    sim = Simulation(40, 4, max_num_batched_tokens=4)
    handle = sim.submit(text(12), max_tokens=2, media=[(0, 3, "X", 1), (3, 8, "Y", 1)])
    sim.step()
    sim.reset_prefix_cache()
    plan = sim.step()
    assert (set(plan.encoder_drops), made(plan)) == ({"X", "Y"}, ["Y"])
    sim.run()
    assert as_alone(sim, handle)


def test_no_two_requests_wait_for_each_others_units() -> None:
    """Scenario 27: the cache holds 10; R0 (8) loses its blocks in the middle of its input, R1 (6) goes on."""
    sim = Simulation(8, 4, max_num_batched_tokens=6, encoder_cache_size=10, policy="priority", preemption="recompute")
    better = sim.submit(text(4, 1), max_tokens=16, priority=0)
    sim.step()
    item = sim.submit(text(20, 2), max_tokens=2, priority=2, media=[(2, 16, "X", 8)])
    sim.step()
    assert sim.encoder.cache.units_held == 8
    other = sim.submit(text(8, 3), max_tokens=2, priority=1, media=[(0, 8, "Y", 6)])
    while item.num_preemptions == 0:
        sim.step()
    sim.run()
    assert as_alone(sim, better, item, other)


def test_a_request_that_is_not_admitted_holds_no_units() -> None:
    """Scenario 27: R0 (8 units) finds no blocks, so R1 (6 units), which has some, is not held up."""
    sim = Simulation(10, 4, encoder_cache_size=10, max_num_batched_tokens=4)
    holder = sim.submit(text(24, 1), max_tokens=2, media=[(2, 20, "Y", 6)])
    sim.step()
    waiting = sim.submit(text(24, 2), max_tokens=2, media=[(0, 8, "X", 8)])
    sim.step()
    assert waiting.status == "waiting"
    assert sim.encoder.cache.units_held == 6
    sim.run()
    assert as_alone(sim, holder, waiting)


def test_a_big_input_is_not_passed_for_ever_by_small_ones() -> None:
    """Row 44: 6 of 10 units are in use, the next in line needs 8; nobody behind it gets the other 4.

    So it waits no longer than those who had units before it need to compute their inputs: here 3 steps.
    """
    sim = Simulation(200, 4, max_num_batched_tokens=8, long_prefill_token_threshold=4, encoder_cache_size=10)
    first = sim.submit(text(14, 1), max_tokens=2, media=[(0, 12, "X", 6)])
    sim.step()
    big = sim.submit(text(12, 2), max_tokens=2, media=[(4, 6, "B", 8)])
    small = [sim.submit(text(12, 3 + n), max_tokens=1, media=[(0, 10, f"S{n}", 4)]) for n in range(8)]
    order = []
    while big.finish_reason is None:
        order += made(sim.step())
    assert order[0] == "B"
    sim.run()
    assert as_alone(sim, first, big, *small)


# --- together with the prefix cache -------------------------------------------------------------------------------


def test_an_input_that_lies_in_a_prefix_hit_is_not_made_again() -> None:
    """Row 44."""
    sim = Simulation(40, 4, encoder_cache_size=8)
    media = [(2, 8, "X", 8)]
    sim.submit(text(17), max_tokens=1, media=media)
    sim.run()
    sim.submit(text(4, 9), max_tokens=1, media=[(0, 4, "Y", 8)])
    sim.run()
    assert sim.encoder.cache.contents == {"Y"}
    again = sim.submit(text(17), max_tokens=3, media=media)
    plan = sim.step()
    assert (plan.tokens, made(plan)) == ({again.id: 1}, [])
    sim.run()
    assert as_alone(sim, again)


def test_the_last_block_of_a_full_hit_needs_its_input_again() -> None:
    """Scenario 27: 32 tokens cached, the last block is computed again, and the input of 8 units reaches into it."""
    sim = Simulation(40, 4, encoder_cache_size=10)
    media = [(22, 10, "X", 8)]
    sim.submit(text(32), max_tokens=1, media=media)
    sim.run()
    again = sim.submit(text(32), max_tokens=3, media=media)
    plan = sim.step()
    assert (plan.tokens, plan.starts) == ({again.id: 4}, (28,))
    assert (made(plan), sim.encoder.stats.num_hits) == ([], 1)
    sim.run()
    assert as_alone(sim, again)


def test_a_hit_is_shortened_where_the_input_it_ends_in_does_not_fit() -> None:
    """Scenario 27: 6 of 10 units are in use, so the 8 do not fit: the hit ends before the input, at 20."""
    sim = Simulation(60, 4, encoder_cache_size=10, long_prefill_token_threshold=6)
    media = [(22, 10, "X", 8)]
    sim.submit(text(32), max_tokens=1, media=media)
    sim.run()
    other = sim.submit(text(20, 3), max_tokens=4, media=[(0, 18, "Y", 6)])
    sim.step()
    again = sim.submit(text(32), max_tokens=3, media=media)
    plan = sim.step()
    assert plan.tokens == {other.id: 6, again.id: 2}
    assert again.num_cached_tokens == 20
    assert made(plan) == []
    sim.run()
    assert as_alone(sim, other, again)


# --- when a step fails --------------------------------------------------------------------------------------------


def test_who_counted_on_an_encoding_of_a_failed_step_computes_again() -> None:
    """Row 43: X is made in the step that fails; the second request was planned to read it in the next."""
    sim = Simulation(60, 4, pipeline_depth=1)
    first = sim.submit(text(10, 1), max_tokens=2, media=[(0, 4, "X", 4)])
    sim.fail_next_step()
    sim.step()
    second = sim.submit(text(10, 2), max_tokens=4, media=[(0, 4, "X", 4)])
    plan = sim.step()
    assert (plan.tokens, made(plan)) == ({first.id: 1, second.id: 10}, [])  # the failure is not known yet
    assert (first.finish_reason, second.finish_reason) == ("error", None)
    plan = sim.step()
    assert (plan.tokens, made(plan)) == ({second.id: 10}, ["X"])
    sim.run()
    assert as_alone(sim, second)


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("media", "message"),
    [
        (
            [(0, 4, "X", 9)],
            r"the input at 0..3 costs 9 units, but encoder_budget=8; make it smaller or raise encoder_b",
        ),
        ([(2, 4, "X", 7)], r"the input at 2..5 costs 7 units, but encoder_cache_size=6; make it smaller or raise enc"),
        ([(2, 7, "X", 6)], r"the input at 2..8 has 7 positions and is not to be split, but a step gives a request 5"),
        ([(18, 3, "X", 1)], r"the input at 18..20 ends at position 21, but the prompt has 20 tokens: give it a place"),
        ([(0, 3, "X", 1), (2, 2, "Y", 1)], r"the input at 2..3 begins before position 3, where the one before it ends"),
        ([(0, 3, "", 1)], "the content id is empty"),
    ],
)
def test_inputs_that_can_never_be_had_are_refused(media: list[Any], message: str) -> None:
    sim = Simulation(40, 4, encoder_budget=8, encoder_cache_size=6, split_inputs=False, long_prefill_token_threshold=5)
    with pytest.raises(RequestRejected, match=message):
        sim.submit(text(20), media=media)
    assert sim.stats.tracked_requests == 0
    handle = sim.submit(text(20), media=[(15, 5, "X", 6)])  # just fits
    sim.run()
    assert as_alone(sim, handle)


def test_without_chunked_prefill_all_inputs_must_fit_one_step() -> None:
    sim = Simulation(40, 4, encoder_budget=8, chunked_prefill=False)
    with pytest.raises(RequestRejected, match=r"the 2 inputs, .* cost 9 units, but encoder_budget=8; enable chunked"):
        sim.submit(text(20), media=[(0, 3, "X", 4), (4, 2, "Y", 5)])
    sim.submit(text(20), media=[(0, 3, "X", 5), (4, 2, "X", 5)])  # one content, made once
    sim.run()


def test_a_scheduler_without_an_encoder_takes_no_inputs() -> None:
    media = (MediaSpan(0, 2, "X", 1),)
    spec = RequestSpec("x", (1, 2, 3), SamplingParams(), 9, frozenset(), media=media)
    with pytest.raises(RequestRejected, match="the prompt has 1 inputs for an encoder, but there is none"):
        Bench().scheduler.add(spec)


@pytest.mark.parametrize("name", ["encoder_budget", "encoder_cache_size", "chunk_alignment"])
def test_numbers_that_leave_nothing_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0 must be at least 1"):
        Simulation(**{name: 0})


def test_alignment_and_whole_inputs_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="split_inputs=False forbids: choose one"):
        Simulation(chunk_alignment=4, split_inputs=False)
