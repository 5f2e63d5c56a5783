"""What ``pytest --pyargs baseboard_conformance`` collects: one test for each case."""

from __future__ import annotations

import pytest

from baseboard_conformance.case import Case
from baseboard_conformance.outcome import Outcome
from baseboard_conformance.pytest_plugin import SESSION


def test_contract(conformance_case: Case, request: pytest.FixtureRequest) -> None:
    session = request.config.stash[SESSION]
    result = session.do(conformance_case)
    request.node.user_properties.append(("cts_outcome", result.outcome.value))
    request.node.user_properties.append(("cts_seed", result.seed))
    if result.outcome.bad or result.outcome in {Outcome.XPASS, Outcome.ERROR}:
        told = f"{result.outcome.value} {result.case} (seed {result.seed})\n{result.message.strip()}"
        pytest.fail(f"{told}\nagain: {session.again(conformance_case)}", pytrace=False)
