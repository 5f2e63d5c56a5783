"""What a step that fails takes with it, and what goes on afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baseboard.contract import BackendFault, ContractError, StepPlan, StepResult
from baseboard.engine.config import EngineConfig
from baseboard.engine.costs import MeasuredCosts
from core.engine.scripted import Done, Scripted, ScriptedExecutor, scripted, tokens

ONE, TWO, THREE = (tuple(tokens(*text)) for text in ("one", "two", "three"))
SCRIPTS = {ONE: [tokens(*"abcdefgh")], TWO: [tokens(*"ijklmnop")], THREE: [tokens(*"qrstuvwx")]}


def fail(error: BaseException, made: Scripted, step: int) -> None:
    """Let the executor raise in that step, after it has taken the plan in."""

    def raise_once(plan: StepPlan) -> None:
        if plan.step == step:
            raise error

    made.executor.before_step = raise_once


def test_a_failed_step_ends_its_own_requests_only() -> None:
    """In step 1 only two of three run: two places."""
    made = scripted(SCRIPTS, max_num_seqs=2)
    ids = [made.add(prompt, max_tokens=4) for prompt in (ONE, TWO, THREE)]
    fail(RuntimeError("out of luck"), made, step=1)
    made.run()
    samples = [made.outputs[request_id].outputs[0] for request_id in ids]
    assert [sample.finish_reason for sample in samples] == ["error", "error", "length"]
    assert [sample.text for sample in samples] == ["a", "i", "qrst"]
    assert samples[0].error == samples[1].error == "RuntimeError: out of luck"
    assert samples[2].error is None
    errors = [delta.error for delta in made.deltas if delta.finish_reason == "error"]
    assert errors == ["RuntimeError: out of luck"] * 2

    again = made.add(ONE, max_tokens=8)
    made.run()
    assert made.outputs[again].outputs[0].text == "abcdefgh"
    assert made.outputs[again].num_cached_tokens == 0  # nothing of the failed requests was published


def test_a_failed_row_ends_its_own_request_only() -> None:
    class FailsTwo(ScriptedExecutor):
        def submit(self, plan: StepPlan) -> Done:
            result = super().submit(plan).result()
            if plan.step != 2:
                return Done(result)
            at = next(row for row, row_id in enumerate(plan.ids) if self.rows[row_id].token_ids == TWO)
            sampled = tuple(() if row == at else each for row, each in enumerate(result.sampled))
            return Done(replace(result, sampled=sampled, failed={at: "NaN"}))

    made = scripted(SCRIPTS, make_executor=FailsTwo)
    ids = [made.add(prompt, max_tokens=4) for prompt in (ONE, TWO, THREE)]
    made.run()
    samples = [made.outputs[request_id].outputs[0] for request_id in ids]
    assert [(sample.text, sample.error) for sample in samples] == [("abcd", None), ("ij", "NaN"), ("qrst", None)]


def test_a_lost_device_ends_everything_and_refuses_more() -> None:
    made = scripted(SCRIPTS, max_num_seqs=1)
    ids = [made.add(prompt) for prompt in (ONE, TWO)]
    fail(BackendFault("fell off the bus"), made, step=1)
    made.run()
    assert [made.outputs[request_id].outputs[0].finish_reason for request_id in ids] == ["error", "error"]
    assert [made.outputs[request_id].outputs[0].error for request_id in ids] == ["fell off the bus"] * 2
    with pytest.raises(BackendFault, match=r"the device is lost .fell off the bus.: build a new engine"):
        made.add(THREE)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), ContractError("the executor lies")])
def test_what_is_no_failure_of_the_step_goes_through_and_leaves_an_engine_that_works(error: BaseException) -> None:
    made = scripted(SCRIPTS, max_num_seqs=1)
    first, second = made.add(ONE), made.add(TWO, max_tokens=8)
    fail(error, made, step=2)
    with pytest.raises(type(error)):
        made.run()
    made.run()  # the request of the interrupted step is gone, the one that waited goes on
    assert made.outputs[second].outputs[0].text == "ijklmnop"
    made.abort(first)
    third = made.add(ONE, max_tokens=8)
    made.run()
    assert made.outputs[third].outputs[0].text == "abcdefgh"


def test_an_answer_to_another_step_is_a_broken_contract() -> None:
    class Confused(ScriptedExecutor):
        def submit(self, plan: StepPlan) -> Done:
            return Done(StepResult(plan.step + 1, super().submit(plan).result().sampled))

    made = scripted(SCRIPTS, make_executor=Confused)
    made.add(ONE)
    with pytest.raises(ContractError, match=r"answered step 1 .* but step 0"):
        made.step()


def test_a_new_engine_believes_that_recomputing_is_the_dearer() -> None:
    costs = MeasuredCosts(seconds_per_block=0.5)
    assert costs.costs().seconds_per_token == float("inf")
    costs.observe(2.0, 100)
    assert costs.costs().seconds_per_token == pytest.approx(0.02)
    costs.observe(1.0, 0)  # a step without tokens tells nothing
    costs.observe(12.0, 100)
    assert costs.costs().seconds_per_token == pytest.approx(0.03)  # a tenth of the way from 0.02 to 0.12
    assert costs.costs().seconds_per_block == 0.5


def test_settings_are_frozen() -> None:
    config = EngineConfig("smollm2")
    with pytest.raises(AttributeError):
        config.seed = 1  # pyright: ignore[reportAttributeAccessIssue]
