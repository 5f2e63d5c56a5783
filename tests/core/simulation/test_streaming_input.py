"""Rows 17, 19 and 47: prompts that come in pieces."""

from __future__ import annotations

import pytest

from baseboard.contract.errors import RequestRejected
from baseboard.request.status import Status
from baseboard.testing import Simulation
from core.simulation.texts import as_alone, run_alone, text

WAITS = Status.WAITING_FOR_STREAMING_INPUT


def run_until_idle(sim: Simulation) -> None:
    """Step until only those are left that wait for something outside."""
    while sim.step().ids:
        pass


def opened(sim: Simulation, prompt: list[int], max_tokens: int = 4, **wishes):
    handle = sim.submit(prompt, max_tokens=max_tokens, streaming=True, **wishes)
    sim.step()
    return handle


def test_what_is_there_is_computed_all_but_the_last_token_and_then_the_request_waits_with_its_blocks() -> None:
    """Row 19. 10 tokens: 9 are computed, 3 blocks are held, the 2 full ones can be hit."""
    sim = Simulation(16, 4)
    h = sim.submit(text(10), max_tokens=4, streaming=True)
    assert sim.step().tokens == {h.id: 9}
    assert (h.status, h.num_computed_tokens, len(h.blocks), h.tokens) == (WAITS, 9, 3, [])
    assert sim.cached_blocks == 2
    assert sim.step().ids == ()
    sim.add_input(h, text(7, 1))
    assert h.status is Status.RUNNING
    plan = sim.step()
    assert (plan.starts, plan.counts, plan.samples) == ((9,), (7,), (0,))
    assert h.blocks[:3] == list(plan.entered[0].tables[0][:3]), "it kept its blocks"
    assert plan.entered[0].num_prompt_tokens == 17
    sim.end_input(h)
    plan = sim.step()
    assert (plan.starts, plan.counts, plan.samples) == ((16,), (1,), (1,))
    assert plan.entered == ()
    sim.run()
    whole = run_alone(Simulation(16, 4), [*text(10), *text(7, 1)], max_tokens=4)
    assert h.tokens == whole.tokens
    assert as_alone(sim, h)


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("pieces", [[1, 1, 1, 1, 1], [1, 9], [9, 1], [4, 4, 4], [3, 5, 2]])
def test_tokens_do_not_depend_on_how_the_prompt_was_cut(pieces: list[int], depth: int) -> None:
    sim = Simulation(32, 4, pipeline_depth=depth, max_num_batched_tokens=3)
    prompt = text(sum(pieces))
    h = sim.submit(prompt[: pieces[0]], max_tokens=5, n=2, seed=1, streaming=True)
    other = sim.submit(text(6, 1), max_tokens=12)
    at = pieces[0]
    for piece in pieces[1:]:
        sim.step()
        sim.add_input(h, prompt[at : at + piece])
        at += piece
    sim.end_input(h)
    sim.run()
    assert h.request.prompt == prompt
    assert as_alone(sim, *h.samples, other)


def test_input_may_come_while_the_request_still_waits_for_its_turn() -> None:
    sim = Simulation(16, 4, max_num_seqs=1)
    first = sim.submit(text(4, 1), max_tokens=3)
    h = opened(sim, text(5))
    sim.add_input(h, text(6, 2))
    sim.end_input(h)
    assert h.status is Status.WAITING
    sim.run()
    assert as_alone(sim, first, h)
    assert sim.stats.num_prompt_tokens == 4 + 11
    assert sim.stats.num_recomputed_tokens == 0


def test_a_prompt_of_one_token_waits_without_a_place_and_lets_others_pass() -> None:
    sim = Simulation(16, 4, max_num_seqs=1)
    h = sim.submit([5], max_tokens=2, streaming=True)
    other = sim.submit(text(4, 1), max_tokens=2)
    assert h.status is WAITS
    assert sim.step().tokens == {other.id: 4}
    sim.add_input(h, text(4))
    assert h.status is Status.WAITING, "it has never run"
    sim.end_input(h)
    sim.run()
    assert as_alone(sim, h, other)
    assert sim.stats.prefix_queries == 5 + 4


def test_a_prompt_whose_end_comes_without_more_is_sampled_from_its_one_token() -> None:
    sim = Simulation(16, 4)
    h = opened(sim, [5])
    sim.end_input(h)
    sim.end_input(h)
    sim.run()
    assert as_alone(sim, h)


def test_it_keeps_its_place_while_it_waits() -> None:
    """Row 19: with one place nobody else begins; row 47: its next piece is served before them."""
    sim = Simulation(32, 4, max_num_seqs=1)
    h = opened(sim, text(6))
    other = sim.submit(text(4, 1), max_tokens=2)
    assert sim.step().ids == ()
    sim.add_input(h, text(3, 2))
    assert sim.step().tokens == {h.id: 3}
    sim.end_input(h)
    order = []
    while other.finish_reason is None:
        order.extend(sim.step().ids)
    assert order.index(other.id) == 4
    assert as_alone(sim, h, other)


def test_what_holds_blocks_while_it_waits_is_served_before_a_better_ranked_new_one() -> None:
    """Row 47: budget for one of them; the newcomer is more important, and still comes second."""
    sim = Simulation(32, 4, policy="priority", max_num_batched_tokens=5)
    h = opened(sim, text(6), priority=9)
    newcomer = sim.submit(text(5, 1), max_tokens=1, priority=0)
    sim.add_input(h, text(5, 2))
    assert sim.step().tokens == {h.id: 5}
    assert sim.step().tokens == {newcomer.id: 5}
    sim.end_input(h)
    sim.run()
    assert as_alone(sim, h, newcomer)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_blocks_are_taken_from_those_that_wait_before_anybody_who_runs(mode: str) -> None:
    """6 blocks: the one that waits is older, holds 3, and gives them up for the one that runs."""
    sim = Simulation(6, 4, num_host_blocks=4, preemption=mode, prefix_caching=False)
    h = opened(sim, text(11))
    runs = sim.submit(text(11, 1), max_tokens=8)
    sim.step()
    assert sim.free_blocks == 0
    while not h.num_preemptions:
        sim.step()
    assert (h.status, h.blocks, runs.num_preemptions) == (WAITS, [], 0)
    assert sim.free_host_blocks == (4 if mode == "recompute" else 1)
    sim.add_input(h, text(2, 2))
    assert h.status is (Status.PREEMPTED if mode == "recompute" else Status.SWAPPED)
    sim.end_input(h)
    sim.run()
    assert as_alone(sim, h, runs)


def test_who_lost_its_blocks_does_not_come_back_before_there_is_something_to_compute() -> None:
    """Otherwise it would take the blocks again, and again lose them to the next in line, for ever."""
    sim = Simulation(4, 4, prefix_caching=False)
    h = opened(sim, text(12))
    other = sim.submit(text(8, 1), max_tokens=3)
    assert sim.step().ids == ()
    assert (h.status, h.blocks) == (WAITS, [])
    assert sim.step().tokens == {other.id: 8}
    run_until_idle(sim)
    assert other.finish_reason == "length"
    assert (h.status, h.num_preemptions) == (WAITS, 1)
    sim.end_input(h)
    sim.run()
    assert as_alone(sim, h, other)


@pytest.mark.parametrize("by", ["swapped", "loaded"])
def test_blocks_are_given_up_for_others_that_hold_some_and_cannot_go_on(by: str) -> None:
    """Nobody runs. What was swapped out, or came from outside, lacks a block that the one that waits holds."""
    sim = Simulation(6, 4, num_host_blocks=8, preemption="swap", prefix_caching=False)
    if by == "swapped":
        h, other = opened(sim, text(8)), sim.submit(text(14, 1), max_tokens=4)
        sim.step()
        sim.preempt(other, "swap")
        sim.add_input(h, text(12, 2))
    else:
        sim.connector.offer(text(17, 1), 16, latency=1)
        other = sim.submit(text(17, 1), max_tokens=2)
        h = sim.submit(text(8), max_tokens=4, streaming=True)
    for _ in range(12):
        sim.step()
    assert (other.finish_reason, h.status, h.num_preemptions) == ("length", WAITS, 1)
    sim.end_input(h)
    sim.run()
    assert as_alone(sim, h, other)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_preemption_on_order_and_an_end_in_every_place_it_can_be(mode: str) -> None:
    """Row 18: nothing stays behind when it is aborted on the device, in the host pool or without blocks."""
    sim = Simulation(16, 4, num_host_blocks=8)
    h = opened(sim, text(10))
    sim.preempt(h, mode)
    assert (h.status, h.blocks, h.num_preemptions) == (WAITS, [], 1)
    assert sim.free_host_blocks == (8 if mode == "recompute" else 5)
    sim.preempt(h, mode)
    assert h.num_preemptions == 1, "there is nothing left to take"
    sim.step()
    sim.abort(h)
    assert (h.finish_reason, sim.free_blocks, sim.free_host_blocks) == ("abort", 16, 8)
    on_device = opened(sim, text(10))
    sim.abort(on_device)
    assert (on_device.finish_reason, sim.free_blocks) == ("abort", 16)
    with pytest.raises(RequestRejected, match=f"request {on_device.id!r} is aborted and takes no more input"):
        sim.add_input(on_device, [1])
    sim.end_input(on_device)
    assert on_device.finish_reason == "abort"


def test_a_reset_that_preempts_takes_the_blocks_of_those_that_wait() -> None:
    sim = Simulation(16, 4)
    h = opened(sim, text(10))
    sim.reset_prefix_cache(preempt=True)
    assert (h.status, h.blocks, h.num_computed_tokens) == (WAITS, [], 0)
    sim.end_input(h)
    assert sim.step().tokens == {h.id: 10}
    sim.run()
    assert as_alone(sim, h)


def test_a_failed_step_ends_the_one_it_was_computing_and_spares_the_one_that_waited() -> None:
    sim = Simulation(16, 4)
    waits, h = opened(sim, text(10)), sim.submit(text(6, 1), max_tokens=4, streaming=True)
    sim.fail_next_step()
    sim.step()
    assert (waits.status, h.finish_reason) == (WAITS, "error")
    sim.end_input(waits)
    sim.run()
    assert as_alone(sim, waits)


def test_a_hit_leaves_something_to_compute_although_the_last_token_waits() -> None:
    """9 tokens of which 8 are cached; 8 may be computed, so only 4 are taken from the cache."""
    sim = Simulation(16, 4)
    run_alone(sim, text(9))
    h = sim.submit(text(9), max_tokens=2, streaming=True)
    assert sim.step().tokens == {h.id: 4}
    assert (h.num_cached_tokens, h.status) == (4, WAITS)
    sim.end_input(h)
    sim.run()
    assert as_alone(sim, h)


def test_sources_outside_are_asked_for_whole_prompts_only() -> None:
    sim = Simulation(16, 4)
    sim.connector.offer(text(9), 8, latency=0)
    h = sim.submit(text(9), max_tokens=2, streaming=True)
    plan = sim.step()
    assert (plan.loads, plan.tokens) == ((), {h.id: 8})
    sim.end_input(h)
    sim.run()
    assert as_alone(sim, h)


def test_a_text_that_continues_a_waiting_prompt_hits_what_that_has_computed() -> None:
    sim = Simulation(16, 4)
    h = opened(sim, text(12))
    follower = sim.submit(text(14), max_tokens=2)
    run_until_idle(sim)
    assert follower.num_cached_tokens == 8
    sim.end_input(h)
    sim.run()
    assert as_alone(sim, h, follower)


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"max_model_len": 12}, "max_model_len=12"),
        ({"num_blocks": 2}, "the whole KV pool holds 8"),
        ({"max_num_batched_tokens": 7, "chunked_prefill": False}, "max_num_batched_tokens=7"),
    ],
)
def test_a_piece_that_makes_the_prompt_too_long_is_refused_and_the_request_goes_on(settings, limit: str) -> None:
    sim = Simulation(**{"num_blocks": 16, "block_size": 4, **settings})
    h = opened(sim, text(6), max_tokens=2)
    with pytest.raises(RequestRejected, match=limit):
        sim.add_input(h, text(20))
    assert (h.status, len(h.request.tokens)) == (WAITS, 6)
    sim.end_input(h)
    sim.run()
    assert as_alone(sim, h)


def test_a_prompt_that_grows_to_the_last_position_has_one_output() -> None:
    """Scenario 15's edge, reached piece by piece: 11 of 12 positions are the prompt."""
    sim = Simulation(16, 4, max_model_len=12)
    h = opened(sim, text(6), max_tokens=5)
    sim.add_input(h, text(5, 1))
    sim.end_input(h)
    sim.run()
    assert (len(h.tokens), h.finish_reason) == (1, "length")


def test_input_for_what_takes_none_is_refused() -> None:
    sim = Simulation(16, 4)
    plain, h = sim.submit(text(6), max_tokens=3), opened(sim, text(6, 1))
    with pytest.raises(RequestRejected, match=f"request {plain.id!r} is whole and takes no more input"):
        sim.add_input(plain, [1])
    with pytest.raises(RequestRejected, match="is empty: give at least one token"):
        sim.add_input(h, [])
    sim.end_input(h)
    with pytest.raises(RequestRejected, match="is whole"):
        sim.add_input(h, [1])
    sim.run()
    assert as_alone(sim, plain, h)


@pytest.mark.parametrize("wish", [{"media": [(0, 2, b"picture", 1)]}, {"source": [1, 2, 3]}])
def test_what_an_encoder_reads_has_to_come_whole(wish) -> None:
    """The request is ended, and nothing of it stays behind."""
    sim = Simulation(16, 4)
    with pytest.raises(RequestRejected, match="has to come whole: submit request 'x' when all of it is there"):
        sim.submit(text(6), request_id="x", streaming=True, **wish)
    assert (sim.stats.tracked_requests, sim.free_blocks) == (0, 16)
    again = sim.submit(text(6), request_id="x", max_tokens=2)
    sim.run()
    assert as_alone(sim, again)


@pytest.mark.parametrize("token", [2**31, "a"])
def test_a_piece_that_holds_what_is_no_token_id_is_refused(token) -> None:
    sim = Simulation(16, 4)
    h = opened(sim, text(6))
    with pytest.raises(RequestRejected, match="holds what is no token id"):
        sim.add_input(h, [1, token])
    sim.end_input(h)
    sim.run()
    assert as_alone(sim, h)


def test_it_waits_for_its_grammar_and_then_for_its_input() -> None:
    sim = Simulation(16, 4)
    h = sim.submit([5], max_tokens=3, streaming=True, grammar=lambda outputs: [1, 2] if len(outputs) < 2 else [])
    other = sim.submit(text(4, 1), max_tokens=2)
    sim.grammar_ready(h)
    assert h.status is WAITS
    assert sim.step().tokens == {other.id: 4}
    sim.add_input(h, text(5))
    sim.end_input(h)
    sim.run()
    assert h.finish_reason == "stop"
    assert as_alone(sim, h, other)


def test_its_adapter_stays_in_use_while_it_keeps_its_place() -> None:
    sim = Simulation(32, 4, max_loras=1)
    h = opened(sim, text(6), adapter="x")
    other, base = sim.submit(text(4, 1), max_tokens=2, adapter="y"), sim.submit(text(4, 2), max_tokens=2)
    assert sim.step().tokens == {base.id: 4}
    sim.end_input(h)
    sim.run()
    assert as_alone(sim, h, other, base)


def test_nobody_is_delayed_for_one_that_only_waits() -> None:
    """Row 11: the delay factor holds prompts back while others run; this one does not run."""
    sim = Simulation(32, 4, delay_factor=10.0)
    opened(sim, text(6))
    sim.tick(1)
    sim.step()
    other = sim.submit(text(4, 1), max_tokens=2)
    assert sim.step().tokens == {other.id: 4}


def test_gauges_count_it_among_those_that_wait_for_something_outside() -> None:
    sim = Simulation(16, 4)
    opened(sim, text(6))
    figures = sim.scheduler.snapshot()
    assert (figures.num_parked, figures.num_running, figures.num_unfinished) == (1, 0, 1)
    assert figures.kv_usage == 2 / 16
