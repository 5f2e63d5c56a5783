"""A right backend passes whatever the seed: here some of them, in a long run 200 for each case of the core profile."""

from __future__ import annotations

import os

import pytest

from baseboard_conformance.bench import Bench
from baseboard_conformance.case import Profile, case_seed
from baseboard_conformance.cases import all_cases
from baseboard_conformance.execute import execute
from baseboard_conformance.outcome import Outcome
from baseboard_conformance.verdict import POLICY

NUMERIC = [c for c in all_cases().values() if c.profile <= Profile.CORE and c.tolerance == POLICY]
#: Small and quick: every feature, layout and dtype at the backend's preferred sizes.
QUICK = [
    c for c in NUMERIC if c.id.startswith(("attention.", "extreme", "scale")) and c.params.get("head_size") is None
]


def failures(cases, seeds, backend):
    for seed in seeds:
        for case in cases:
            result = execute(case, Bench(backend, "reference", case_seed(case.id, seed), shrinking=0)).result
            if result.outcome not in {Outcome.PASS, Outcome.NOT_CLAIMED}:
                yield f"{case.id} seed {seed}: {result.message}"


def test_quick_cases_hold_for_other_seeds(opened) -> None:
    assert len(QUICK) > 90
    assert list(failures(QUICK, range(100, 103), opened)) == []


@pytest.mark.skipif(
    os.environ.get("BASEBOARD_LONG_TESTS") != "1", reason="takes hours on two cores: BASEBOARD_LONG_TESTS=1"
)
@pytest.mark.timeout(6 * 3600)
def test_core_holds_for_200_seeds(opened) -> None:
    assert list(failures(NUMERIC, range(200), opened)) == []
