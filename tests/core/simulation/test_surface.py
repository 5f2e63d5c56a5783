"""The public surface of the simulation: arguments, refusals, handles."""

from __future__ import annotations

import pytest

from baseboard.contract.errors import RequestRejected, Unsupported
from baseboard.request.status import Status
from baseboard.testing import Simulation
from core.simulation.texts import as_alone, text


def test_arguments_that_ask_for_nothing_are_accepted() -> None:
    sim = Simulation(
        delay_factor=0.0,
        num_draft_tokens=0,
        max_loras=None,
        encoder_budget=None,
        encoder_cache_size=None,
        sliding_window=None,
        load_timeout=None,
    )
    h = sim.submit(text(4), adapter=None, media=(), grammar=None)
    sim.run()
    assert as_alone(sim, h)


def test_misspelt_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'prefix_cache'"):
        Simulation(prefix_cache=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_token'"):
        Simulation().submit(text(4), max_token=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_blocks": 0}, "num_blocks=0 must be at least 1"),
        ({"block_size": 0}, "block_size=0 must be at least 1"),
        ({"num_blocks": -1, "block_size": -1}, "num_blocks=-1 must be at least 1"),
        ({"num_host_blocks": -1}, "num_host_blocks=-1 must not be negative"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens=0 must be at least 1"),
        ({"max_num_seqs": 0}, "max_num_seqs=0 must be at least 1"),
        ({"max_num_active_seqs": 0}, "max_num_active_seqs=0 must be at least 1"),
        ({"max_model_len": 1}, "max_model_len=1 must be at least 2: one token in, one out"),
        ({"sliding_window": 0}, "a window of 0 tokens sees nothing: it must be at least 1"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold=-1 must not be negative"),
    ],
)
def test_numbers_that_leave_nothing_to_schedule_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Simulation(**arguments)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "lifo"}, "policy='lifo' is unknown; known are aging, fcfs, prefill_first, priority"),
        ({"preemption": "drop"}, "preemption='drop' is unknown; known are auto, recompute, swap"),
    ],
)
def test_names_that_nobody_registered_are_refused(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(Unsupported, match=f"^{message}$"):
        Simulation(**arguments)  # pyright: ignore[reportArgumentType]
    sim = Simulation()
    h = sim.submit(text(4))
    with pytest.raises(Unsupported, match="preemption='drop' is unknown"):
        sim.preempt(h, "drop")


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestRejected, match="the prompt is empty"):
        Simulation().submit([])


def test_a_handle_shows_one_request() -> None:
    sim = Simulation(8, 4)
    h = sim.submit(text(6), max_tokens=3, request_id="x")
    assert (h.id, h.status, h.tokens, h.finish_reason, h.error) == ("x", Status.WAITING, [], None, None)
    assert (h.num_computed_tokens, h.num_cached_tokens, h.num_preemptions, h.blocks) == (0, 0, 0, [])
    assert h.samples[0] is h
    assert "'x' waiting 0/6 tokens" in repr(h)
    sim.step()
    assert (h.num_computed_tokens, len(h.blocks), h.num_in_flight) == (6, 2, 0)


def test_a_plan_never_changes_afterwards() -> None:
    sim = Simulation(8, 4, pipeline_depth=1)
    h = sim.submit(text(6), max_tokens=3)
    plan = sim.step()
    before = repr(plan)
    sim.run()
    assert repr(plan) == before
    assert plan.tokens == {h.id: 6}


def test_run_says_how_many_steps_it_took_and_complains_when_they_do_not_do() -> None:
    sim = Simulation(8, 4)
    sim.submit(text(6), max_tokens=3)
    assert sim.run() == 3
    assert sim.run() == 0
    sim.submit(text(6), max_tokens=9)
    with pytest.raises(AssertionError, match="1 requests left after 4 steps"):
        sim.run(max_steps=4)


def test_solo_is_what_a_simulation_with_one_request_gives() -> None:
    """The oracle is computed from the model alone; here it is held against a run."""
    crowd = Simulation(24, 4, max_num_batched_tokens=16)
    handles = [crowd.submit(text(7, key), max_tokens=9, n=2, seed=key, salt=str(key % 2)) for key in range(6)]
    for key, h in enumerate(handles):
        alone = Simulation(1000, 4, prefix_caching=False)
        same = alone.submit(text(7, key), max_tokens=9, n=2, seed=key, salt=str(key % 2))
        alone.run()
        assert [s.tokens for s in same.samples] == [crowd.solo(s) for s in h.samples]


def test_a_script_counts_from_the_first_output_and_holds_for_what_it_covers() -> None:
    sim = Simulation(8, 4)
    h = sim.submit(text(4), max_tokens=5)
    sim.script(h, [1, 2])
    sim.run()
    assert h.tokens[:2] == [1, 2]
    assert h.tokens == sim.solo(h)
    plain = Simulation(8, 4)
    longer = plain.submit([*text(4), 1, 2], max_tokens=3)
    plain.run()
    assert h.tokens[2:] == longer.tokens


def test_the_free_list_shows_which_block_goes_next() -> None:
    sim = Simulation(4, 4)
    assert sim.free_list == [1, 2, 3, 4]
    h = sim.submit(text(5), max_tokens=2)
    sim.step()
    assert h.blocks == [1, 2]
    assert sim.free_list == [3, 4]
    sim.run()
    assert sim.free_list == [3, 4, 2, 1]


def test_preempting_what_does_not_run_does_nothing() -> None:
    sim = Simulation(8, 4)
    h = sim.submit(text(4), max_tokens=2)
    sim.preempt(h)
    assert (h.status, h.num_preemptions) == (Status.WAITING, 0)
    sim.run()
    sim.preempt(h)
    assert h.finish_reason == "length"


def test_the_check_notices_a_plan_that_changed() -> None:
    sim = Simulation(8, 4)
    sim.check()
    sim.device.metadata_mismatches += 1
    with pytest.raises(AssertionError, match="a plan changed after it was handed over"):
        sim.check()


def test_the_check_notices_a_lost_reference() -> None:
    sim = Simulation(8, 4)
    h = sim.submit(text(4), max_tokens=2)
    sim.step()
    sim.scheduler.kv.pool.acquire(h.blocks[0])
    with pytest.raises(AssertionError, match="reference counts"):
        sim.check()


def test_the_check_notices_a_request_in_the_wrong_queue() -> None:
    sim = Simulation(8, 4)
    h = sim.submit(text(4), max_tokens=2)
    book = sim.scheduler._book
    book.waiting.remove(h.request)
    with pytest.raises(AssertionError, match="in no queue, or in two"):
        sim.check()
    book.running.add(h.request)
    with pytest.raises(AssertionError, match="in the wrong queue"):
        sim.check()


def test_every_name_that_the_design_fixes_is_there() -> None:
    """Section 5, word for word; what is refused until it is built counts, for its name is known."""
    sim = Simulation(
        num_blocks=12, block_size=16, num_host_blocks=0, max_num_batched_tokens=2048, max_num_seqs=64,
        max_num_active_seqs=None, max_model_len=4096, policy="fcfs", preemption="auto", prefix_caching=True,
        chunked_prefill=True, long_prefill_token_threshold=0, delay_factor=0.0, pipeline_depth=0, num_draft_tokens=0,
        max_loras=None, encoder_budget=None, encoder_cache_size=None, sliding_window=None, seed=0,
        reverse_rows=False, copy_latency=0, late_metadata=False, load_timeout=None,
    )  # fmt: skip
    prompt = text(20)
    sim.connector.offer(prompt, 16, latency=0, lost_blocks=(), known_after=2)
    h = sim.submit(
        prompt=prompt, max_tokens=8, request_id=None, priority=0, adapter=None, salt=None, stop_token_ids=(), n=1,
        seed=None, media=(), grammar=None,
    )  # fmt: skip
    sim.script(h, [7])
    sim.accept_drafts(h, [3, 0, 2])
    sim.connector.store(h, latency=2)
    plan = sim.step()
    assert (plan.tokens[h.id], plan.num_tokens, plan.copies, plan.swaps_in, plan.swaps_out) == (20, 20, (), (), ())
    child = sim.fork(h)
    sim.preempt(h, mode="swap")
    sim.reset_prefix_cache(preempt=False)
    for hold in ("new", "all", "none"):
        sim.pause(hold)
    sim.throttle(True)
    sim.throttle(False)
    sim.tick(1.0)
    sim.delay_next_result(1)
    sim.abort(child, deliver_after=1)
    waits = sim.submit(text(5, 1), grammar=lambda outputs: [1])
    sim.grammar_ready(waits)
    sim.fail_next_step()
    sim.run(max_steps=1000)
    sim.step()
    sim.step()
    sim.check()
    assert h.tokens == sim.solo(h)[: len(h.tokens)]
    assert h.finish_reason in {"length", "error"}
    assert (h.status.finished, h.samples, h.num_in_flight, h.num_grammar_tokens, h.blocks) == (True, [h], 0, 0, [])
    assert (h.num_preemptions, h.num_cached_tokens) == (1, 0)
    assert {h.num_computed_tokens, h.error} & {27, "step 1 was told to fail"}
    assert (sim.free_blocks, sim.free_host_blocks, sorted(sim.free_list)) == (12, 0, list(range(1, 13)))
    assert sim.cached_blocks <= 12
    names = ("tracked_requests", "num_preemptions", "prefix_queries", "prefix_hits", "evictions", "metadata_mismatches")
    assert all(sim.stats[name] >= 0 for name in names)
    assert sim.device.execute(copies=(), swaps_out=(), swaps_in=(), writes={}, reads=()) == []
