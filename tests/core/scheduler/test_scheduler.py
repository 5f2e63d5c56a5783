"""The scheduler as its owner sees it: answers of an executor, failing rows, ends from outside."""

from __future__ import annotations

from typing import Any

import pytest

from baseboard.contract.errors import ContractError, RequestRejected
from baseboard.contract.plan import StepResult
from baseboard.request.status import Event, Status
from baseboard.scheduler.planner import Roles
from baseboard.scheduler.preemption import Recompute, Swap
from baseboard.scheduler.ranks import FirstComeFirstServed
from core.scheduler.bench import Bench


def test_an_answer_to_another_step_is_refused() -> None:
    bench = Bench()
    bench.add("x", range(4))
    bench.scheduler.schedule()
    with pytest.raises(ContractError, match="answered step 5 with 1 rows, but step 0 has 1"):
        bench.scheduler.commit(StepResult(5, ((1,),)))


def test_an_answer_with_another_number_of_rows_is_refused() -> None:
    bench = Bench()
    bench.add("x", range(4))
    bench.scheduler.schedule()
    with pytest.raises(ContractError, match="answered step 0 with 2 rows, but step 0 has 1"):
        bench.scheduler.commit(StepResult(0, ((1,), (2,))))


def test_a_row_with_another_number_of_tokens_is_refused() -> None:
    bench = Bench()
    bench.add("x", range(4), n=2, temperature=1.0)
    bench.scheduler.schedule()
    with pytest.raises(ContractError, match="'x' was to get 2 tokens and got 1"):
        bench.scheduler.commit(StepResult(0, ((1,),)))


@pytest.mark.parametrize("sampled", [(), (1, 2)])
def test_a_plain_row_brings_exactly_one_token(sampled: tuple[int, ...]) -> None:
    bench = Bench()
    bench.add("x", range(4))
    bench.scheduler.schedule()
    with pytest.raises(ContractError, match=rf"'x' was to get 1 tokens and got {len(sampled)}"):
        bench.scheduler.commit(StepResult(0, (sampled,)))


@pytest.mark.parametrize("prompt", [[1, 2**31], [1, "2"], [1, 2.0]])
def test_what_is_no_token_id_is_refused(prompt: list[Any]) -> None:
    bench = Bench()
    with pytest.raises(RequestRejected, match="the prompt holds what is no token id"):
        bench.add("x", prompt)
    assert bench.scheduler.num_unfinished == 0
    bench.add("x", [1, 2])


def test_the_outcome_says_who_gained_what_from_which_row() -> None:
    bench = Bench()
    x, y = bench.add("x", range(4), max_tokens=1), bench.add("y", range(4), n=2, temperature=1.0)
    bench.scheduler.schedule()
    outcome = bench.scheduler.commit(StepResult(0, ((7,), (8, 9))))
    assert [(request.id, row) for request, row in zip(outcome.requests, outcome.rows, strict=True)] == [
        ("x", 0),
        ("y#1", 1),
        ("y", 1),
    ]
    assert [(fork.parent.id, fork.child.id, fork.child.outputs) for fork in outcome.forks] == [("y", "y#1", [9])]
    assert outcome.finished == [x]
    assert (x.outputs, y.outputs) == ([7], [8])


def test_a_failed_row_ends_its_request_only() -> None:
    """Scenario 101a: blocks back at once, nothing of it published, the neighbour goes on."""
    bench = Bench()
    bad, good = bench.add("bad", range(8)), bench.add("good", range(20, 28))
    bench.step(failed={0: "its logits are not numbers"})
    assert (bad.finish_reason, bad.error, bad.outputs) == ("error", "its logits are not numbers", [])
    assert (good.status, good.num_outputs) == (Status.RUNNING, 1)
    assert bench.scheduler.kv.pool.num_free == 16 - 2
    assert bench.scheduler.kv.index.num_entries == 2, "those of the good one"
    plan = bench.step()
    assert (plan.tokens, plan.retired) == ({"good": 1}, ("bad",))


@pytest.mark.parametrize("preemption", [Recompute(), Swap()])
def test_a_row_that_failed_after_its_request_was_preempted_is_computed_again(preemption) -> None:
    bench = Bench(Roles(FirstComeFirstServed(), preemption), host=8)
    x = bench.add("x", range(8))
    _, result = bench.plan()
    bench.scheduler.preempt(x, preemption)
    bench.scheduler.commit(StepResult(0, result.sampled, failed={0: "no"}))
    assert (x.status, x.computed, x.outputs, x.error) == (Status.PREEMPTED, 0, [], None)
    plan = bench.step()
    assert (plan.starts, plan.counts) == ((0,), (8,))
    assert (plan.swaps_out, bench.scheduler.kv.host.num_free) == ((), 8)


def test_a_request_can_be_ended_from_outside_for_any_reason() -> None:
    bench = Bench()
    for event, reason in ((Event.STOP, "stop"), (Event.ABORT, "abort"), (Event.FAIL, "error")):
        request = bench.add("x", range(8))
        bench.step()
        bench.scheduler.finish(request, event)
        bench.scheduler.finish(request, Event.ABORT)
        assert request.finish_reason == reason
    assert bench.scheduler.kv.pool.num_free == 16
    assert bench.scheduler.stats.num_finished == 3


def test_a_finished_row_is_retired_once() -> None:
    bench = Bench()
    bench.add("x", range(8), max_tokens=1)
    never_ran = bench.add("y", range(8))
    bench.scheduler.finish(never_ran, Event.ABORT)
    bench.step()
    assert [bench.step().retired for _ in range(2)] == [("x",), ()]


def test_numbers_tell_what_stands_where() -> None:
    bench = Bench(Roles(FirstComeFirstServed(), Swap()), host=8)
    x, _ = bench.add("x", range(8)), bench.add("y", range(8))
    bench.scheduler.schedule()
    scheduler = bench.scheduler
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_in_flight) == (2, 0, 1)
    scheduler.preempt(x, Swap())
    assert (scheduler.num_running, scheduler.num_swapped, scheduler.num_unfinished) == (1, 1, 2)


def test_min_tokens_hold_stop_ids_back() -> None:
    bench = Bench()
    request = bench.add("x", range(4), max_tokens=5, min_tokens=2)
    object.__setattr__(request, "stop_ids", frozenset({9}))
    for token in (9, 9):
        plan = bench.scheduler.schedule()
        bench.scheduler.commit(StepResult(plan.step, ((token,),)))
    assert not request.finished
    plan = bench.scheduler.schedule()
    bench.scheduler.commit(StepResult(plan.step, ((9,),)))
    assert (request.outputs, request.finish_reason, request.stop_reason) == ([9, 9, 9], "stop", 9)


def test_a_child_id_in_use_is_refused() -> None:
    bench = Bench()
    x = bench.add("x", range(4))
    bench.step()
    with pytest.raises(RequestRejected, match="request id 'x' is in use: choose another"):
        bench.scheduler.fork(x, "x", 9)


def test_a_copy_whose_source_is_handed_out_again_in_the_same_step_is_a_batch_of_its_own() -> None:
    """A copies X and leaves it to its child, which is evicted for C: so X becomes the target of C's copy."""
    bench = Bench(num_blocks=3)
    a, c = bench.add("A", range(2), max_tokens=6), bench.add("C", range(10, 12), max_tokens=6)
    bench.step()
    for arrival, (parent, child) in enumerate(((c, "of C"), (a, "of A")), 10):
        bench.device.facts[child] = bench.device.facts[parent.id]
        bench.scheduler.fork(parent, child, arrival)
    (x,), (y,) = bench.scheduler.kv.held("A"), bench.scheduler.kv.held("C")
    plan = bench.step()
    assert plan.tokens == {"A": 1, "C": 1, "of C": 1}
    (first,), (second,) = (op.pairs for op in plan.kv_ops)
    assert (first.source, second.source, second.destination) == (x, y, x)
    while bench.scheduler.num_unfinished:
        bench.step()
    assert (a.num_outputs, c.num_outputs) == (6, 6)
