"""Rows 19, 21, 50, 51 and 53 at the engine: times, clients, trace contexts, prompts in pieces, NaN counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from baseboard.contract import RequestRejected, SamplingParams, StepPlan
from baseboard.engine.engine import Engine, EngineParts, Prompt, Terms
from baseboard.engine.metrics import RequestMetrics
from baseboard.llm import LLM
from baseboard.request.request import ANYBODY, Caller
from core.engine.scripted import Done, Scripted, ScriptedExecutor, scripted, tokens

ONE, TWO = (tuple(tokens(*text)) for text in ("one", "two"))
SCRIPTS = {ONE: [tokens(*"abcdefgh"), tokens(*"qrstuvwx")], TWO: [tokens(*"ijklmnop")]}


class Clock:
    """Goes on when it is told to, and by a second in every step of the executor."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def timed(**settings) -> tuple[Scripted, Clock]:
    clock = Clock()
    made = scripted(SCRIPTS, clock=clock, **settings)

    def a_second_goes_by(plan: StepPlan) -> None:
        clock.now += 1

    made.executor.before_step = a_second_goes_by
    return made, clock


def test_a_request_says_how_long_it_waited_and_how_fast_it_went() -> None:
    """Queued at 100, planned at 102.5, first token at 103.5, three more at one a second."""
    made, clock = timed()
    request_id = made.add(ONE, max_tokens=4)
    clock.now += 2.5
    made.run()
    metrics = made.outputs[request_id].metrics
    assert metrics == RequestMetrics(100.0, 102.5, 103.5, 106.5, 3)
    assert (metrics.queue_seconds, metrics.seconds_to_first_token, metrics.seconds_per_token) == (2.5, 3.5, 1.0)


def test_several_samples_share_the_first_and_the_last_moment() -> None:
    made, _ = timed()
    request_id = made.add(ONE, max_tokens=3, n=2, temperature=1.0)
    made.run()
    metrics = made.outputs[request_id].metrics
    assert metrics == RequestMetrics(100.0, 100.0, 101.0, 103.0, 4)
    assert metrics.seconds_per_token == 0.5


def test_what_never_came_took_no_time() -> None:
    made, _ = timed(max_num_seqs=1)
    first, second = made.add(ONE, max_tokens=1), made.add(TWO, max_tokens=4)
    made.abort(second)
    made.run()
    metrics = made.outputs[second].metrics
    assert (metrics.queue_seconds, metrics.seconds_to_first_token, metrics.seconds_per_token) == (None, None, None)
    assert made.outputs[first].metrics.seconds_per_token is None, "there is no second token"


def test_without_a_log_there_are_no_times() -> None:
    made, _ = timed()
    parts = made.engine._parts
    roles_without = scripted(SCRIPTS)
    engine = Engine(EngineParts(roles_without.engine.scheduler, parts.executor, parts.model, parts.costs, parts.clock))
    engine.add(Prompt(ONE), SamplingParams(temperature=0, max_tokens=1))
    (output,) = engine.step().finished
    assert output.metrics is None


def test_each_client_gets_its_deltas_and_outputs_and_its_trace_context_back() -> None:
    made, _ = timed()
    params = SamplingParams(temperature=0, max_tokens=2)
    trace = {"traceparent": "00-aa-bb-01"}
    made.engine.add(Prompt(ONE), params, "mine", terms=Terms(caller=Caller(client=1, trace=trace)))
    made.engine.add(Prompt(TWO), params, "theirs", terms=Terms(caller=Caller(client=2)))
    made.engine.add(Prompt(TWO), params.replace(max_tokens=1), "anybody's")
    first = made.engine.step().by_client()
    assert {client: [delta.text for delta in part.deltas] for client, part in first.items()} == {
        0: ["i"],
        1: ["a"],
        2: ["i"],
    }
    assert [output.caller for output in first[0].finished] == [ANYBODY]
    last = made.engine.step().by_client()
    assert sorted(last) == [1, 2]
    (mine,) = last[1].finished
    assert (mine.request_id, mine.caller.client, mine.caller.trace) == ("mine", 1, trace)
    aborted = made.engine.add(Prompt(TWO), params, terms=Terms(caller=Caller(client=2)))
    assert list(made.engine.abort(aborted).by_client()) == [2]


def test_a_prompt_in_pieces_says_nothing_before_it_is_whole() -> None:
    whole = (*ONE, *TWO)
    made = scripted({whole: [tokens(*"abcd")]})
    request_id = made.add(ONE, max_tokens=2)
    made.engine.open_input(request_id)
    made.step()
    made.step()
    assert made.deltas == []
    with pytest.raises(RequestRejected, match="prompt_token_ids holds 999"):
        made.engine.add_input(request_id, [999])
    made.engine.add_input(request_id, TWO)
    made.engine.end_input(request_id)
    made.run()
    output = made.outputs[request_id]
    assert (output.outputs[0].text, output.prompt_token_ids) == ("ab", list(whole))
    made.engine.end_input(request_id)
    with pytest.raises(RequestRejected, match=f"request {request_id!r} is unknown or has finished"):
        made.engine.add_input(request_id, TWO)


@pytest.mark.parametrize("failed", [{}, {0: "NaN"}])
def test_the_output_says_how_many_values_were_no_numbers(failed: dict[int, str]) -> None:
    class Broken(ScriptedExecutor):
        def submit(self, plan: StepPlan) -> Done:
            result = super().submit(plan).result()
            return Done(replace(result, num_nans={0: 3}, failed=failed) if plan.step == 1 else result)

    made = scripted(SCRIPTS, make_executor=Broken)
    request_id = made.add(ONE, max_tokens=4)
    made.run()
    (sample,) = made.outputs[request_id].outputs
    assert (sample.num_nans, sample.finish_reason) == (3, "error" if failed else "length")


def test_a_real_model_says_of_a_prompt_in_pieces_what_it_says_of_the_whole(open_llm: Callable[..., LLM]) -> None:
    """Row 19 on torch: the row enters anew with each piece and keeps its blocks."""
    llm = open_llm()
    prompt, params = [*b"a prompt in three pieces"], SamplingParams(temperature=0, max_tokens=6)
    (whole,) = llm.generate([{"prompt_token_ids": prompt}], params)
    llm.reset_prefix_cache()
    engine = llm.built.engine
    request_id = engine.add(Prompt(tuple(prompt[:9])), params)
    engine.open_input(request_id)
    for begin, end in ((9, 16), (16, 24)):
        engine.step()
        engine.add_input(request_id, prompt[begin:end])
    engine.end_input(request_id)
    finished = []
    while not finished:
        finished = engine.step().finished
    (output,) = finished
    assert (output.prompt_token_ids, output.num_cached_tokens) == (prompt, 0)
    assert output.outputs[0].token_ids == whole.outputs[0].token_ids
    assert output.metrics.queue_seconds < output.metrics.seconds_to_first_token
    assert whole.metrics.seconds_per_token > 0
