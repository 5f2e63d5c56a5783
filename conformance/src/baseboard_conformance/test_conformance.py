"""What ``pytest --pyargs baseboard_conformance`` collects: one test for each case."""

from __future__ import annotations

import pytest

from baseboard_conformance.case import Case
from baseboard_conformance.outcome import Outcome
from baseboard_conformance.pytest_plugin import SESSION


def test_contract(conformance_case: Case, request: pytest.FixtureRequest) -> None:
    result = request.config.stash[SESSION].do(conformance_case)
    request.node.user_properties.append(("cts_outcome", result.outcome.value))
    request.node.user_properties.append(("cts_seed", result.seed))
    if result.outcome.bad or result.outcome in {Outcome.XPASS, Outcome.ERROR}:
        pytest.fail(f"{result.outcome.value} {result.case} (seed {result.seed})\n{result.message}", pytrace=False)
