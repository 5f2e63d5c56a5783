"""The reference backend is a candidate like all others."""

from __future__ import annotations

import os

import pytest

from baseboard_conformance.case import Profile
from baseboard_conformance.exits import ExitCode
from baseboard_conformance.outcome import Outcome
from baseboard_conformance.report.document import problems
from baseboard_conformance.run import Request, plan, run


def conformant(profile: Profile) -> None:
    document = run(plan(Request("reference", profile)), lambda _: None)
    assert document.code is ExitCode.CONFORMANT, document.sentence
    assert problems(document) == []
    computed = {r.case.split("/")[2] for r in document.results if r.case.startswith("attention.plain/")}
    assert computed == {"float32", "bfloat16", "float16"}
    assert not [r.case for r in document.results if r.outcome not in {Outcome.PASS, Outcome.NOT_CLAIMED}]


def test_it_passes_smoke() -> None:
    conformant(Profile.SMOKE)


@pytest.mark.skipif(os.environ.get("BASEBOARD_LONG_TESTS") != "1", reason="takes minutes: BASEBOARD_LONG_TESTS=1")
def test_it_passes_full() -> None:
    conformant(Profile.FULL)
