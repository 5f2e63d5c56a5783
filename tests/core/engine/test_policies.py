"""Policies of other parties in the engine: their failures come out as errors, priority and tenant go in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from baseboard.contract import RequestRejected, Unsupported
from baseboard.engine import config as engine_config
from baseboard.llm import LLM
from baseboard.scheduler.policy import Policy
from baseboard.scheduling import RequestSpec, Verdict
from core.engine.scripted import Scripted, scripted, tokens
from core.scheduling.plugins import ExtensionPlugin, PolicyPlugin, registry

ONE, TWO, THREE = (tuple(tokens(*text)) for text in ("one", "two", "three"))
SCRIPTS = {ONE: [tokens(*"abcdefgh")] * 3, TWO: [tokens(*"ijklmnop")], THREE: [tokens(*"qrstuvwx")]}
ERROR = "scheduling plugin 'x' failed in {}: ValueError: not this one"


def stumble(prompt: tuple[int, ...], otherwise: Any) -> Callable[..., Any]:
    def method(_self: object, request: Any, *_others: Any) -> Any:
        spec = request if isinstance(request, RequestSpec) else request.spec
        if spec.prompt == prompt:
            raise ValueError("not this one")
        return otherwise

    return method


class Holding:
    check = stumble(ONE, Verdict.ADMIT)


class Watching:
    admitted = stumble(ONE, None)

    def begin_step(self, step: object) -> None: ...


class Ordering:
    def key(self, spec: RequestSpec) -> tuple[int, ...]:
        return stumble(ONE, (spec.arrival,))(self, spec)


def made(kind: str) -> Scripted:
    if kind == "Rank.key":
        return scripted(SCRIPTS, policy=Policy("x"), registry=registry(x=PolicyPlugin(Ordering())))
    part = {"Gate.check": {"gates": [Holding()]}, "Observer.admitted": {"observers": [Watching()]}}[kind]
    return scripted(SCRIPTS, policy=Policy(extensions=("x",)), registry=registry(x=ExtensionPlugin(**part)))


@pytest.mark.parametrize("kind", ["Rank.key", "Gate.check", "Observer.admitted"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_plugins_failure_is_one_requests_error(kind: str, n: int) -> None:
    it = made(kind)
    bad, good, other = it.add(ONE, max_tokens=4, n=n), it.add(TWO, max_tokens=4), it.add(THREE, max_tokens=4)
    it.run()
    (sample,) = it.outputs[bad].outputs
    assert (sample.finish_reason, sample.error, sample.text) == ("error", ERROR.format(kind), "")
    assert it.streamed(good) == "ijkl"
    assert it.streamed(other) == "qrst"


def test_it_is_told_though_nobody_else_is_there() -> None:
    it = made("Rank.key")
    bad = it.add(ONE)
    assert it.engine.has_unfinished
    it.step()
    assert it.outputs[bad].outputs[0].error == ERROR.format("Rank.key")
    it.check_idle()


def test_giving_up_what_has_failed_already_is_harmless() -> None:
    it = made("Rank.key")
    bad = it.add(ONE)
    it.abort(bad)
    assert it.outputs[bad].outputs[0].finish_reason == "error"
    good = it.add(TWO, max_tokens=2)
    it.run()
    assert it.streamed(good) == "ij"


def test_a_plugins_failure_and_a_failed_step_together() -> None:
    it = made("Observer.admitted")
    bad, good = it.add(ONE, max_tokens=2), it.add(TWO, max_tokens=2)

    def fail(plan: object) -> None:
        it.executor.before_step = lambda plan: None
        raise RuntimeError("out of luck")

    it.executor.before_step = fail
    it.run()
    assert it.outputs[bad].outputs[0].error == ERROR.format("Observer.admitted")
    assert it.outputs[good].outputs[0].error == "RuntimeError: out of luck"


# --- through LLM ------------------------------------------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[RequestSpec]:
    """A policy "x" is installed, which notes what it is asked about; so is an extension "y"."""
    specs: list[RequestSpec] = []

    class Noting:
        def key(self, spec: RequestSpec) -> tuple[int, ...]:
            specs.append(spec)
            return (spec.priority,)

    found = registry(x=PolicyPlugin(Noting()), y=ExtensionPlugin())
    monkeypatch.setattr(engine_config, "registry_for", lambda _policy: found)
    return specs


def test_priority_and_tenant_reach_the_policy(open_llm: Callable[..., LLM], seen: list[RequestSpec]) -> None:
    llm = open_llm(policy="x", extensions=["y"])
    llm.generate(["a", "b"], priority=[3, -1], tenant=["acme", None])
    llm.generate("c", priority=2, tenant="acme")
    llm.chat([{"role": "user", "content": "d"}], tenant="umbrella")
    assert [(spec.priority, spec.tenant) for spec in seen] == [(3, "acme"), (-1, None), (2, "acme"), (0, "umbrella")]
    assert [spec.arrived_at for spec in seen] == sorted(spec.arrived_at for spec in seen)
    assert seen[0].arrived_at > 0
    assert llm.stats()["num_policy_faults"] == 0


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"priority": [1]}, "1 values of priority for 2 prompts: give one, or one for each"),
        ({"tenant": ["a", "b", "c"]}, "3 values of tenant for 2 prompts"),
        ({"priority": "high"}, "priority='high' is not allowed: give a list"),
        ({"priority": True}, "priority=True must be a whole number"),
        ({"priority": [1, 2.5]}, "priority=2.5 must be a whole number"),
        ({"tenant": ["a", 3]}, "tenant=3 must be a name"),
    ],
)
def test_terms_on_which_nothing_can_be_served(open_llm: Callable[..., LLM], terms: dict[str, Any], said: str) -> None:
    llm = open_llm()
    with pytest.raises(RequestRejected, match=said):
        llm.generate(["a", "b"], **terms)
    assert llm.stats()["num_requests"] == 0


def test_a_name_that_nobody_has_is_refused_before_the_model_is_read(seen: list[RequestSpec]) -> None:
    with pytest.raises(Unsupported, match=r"policy='z' is unknown; known are aging, fcfs, prefill_first, priority, x"):
        LLM("there is no such model", policy="z")
