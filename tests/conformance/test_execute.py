"""Whose fault it is when something raises."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baseboard_conformance import problem
from baseboard_conformance.bench import Bench
from baseboard_conformance.cases import all_cases
from baseboard_conformance.execute import execute
from baseboard_conformance.outcome import Outcome

CASE = all_cases()["scale/chunked/float32"]


def broken(*_: object, **__: object) -> None:
    raise ZeroDivisionError("a bug")


def test_a_fault_of_the_oracle_is_no_failure_of_the_backend(opened, monkeypatch) -> None:
    bench = Bench(opened, "reference", seed=0, shrinking=0)
    assert execute(CASE, bench).result.outcome is Outcome.PASS
    monkeypatch.setattr(problem, "solve", broken)
    result = execute(CASE, bench).result
    assert (result.outcome, result.message.partition("\n")[0]) == (
        Outcome.ERROR,
        "the suite raised ZeroDivisionError: a bug",
    )


@pytest.mark.parametrize("hook", ["attention_kernel", "build_attention_metadata"])
def test_a_fault_of_a_hook_is_the_backends(opened, hook) -> None:
    class Wrong:
        def __getattr__(self, name: str):
            return broken if name == hook else getattr(opened.hook, name)

    class Backend:
        hook = Wrong()
        capabilities = opened.capabilities

    result = execute(CASE, Bench(Backend(), "reference", seed=0, shrinking=0)).result
    assert (result.outcome, "the backend raised ZeroDivisionError: a bug" in result.message) == (Outcome.FAIL, True)


def test_ctrl_c_is_nobodys_result(opened) -> None:
    def interrupted(_: Bench) -> dict[str, float]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(replace(CASE, body=interrupted), Bench(opened, "reference", seed=0))
