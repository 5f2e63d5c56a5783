"""The tables of the docs say what is there."""

from __future__ import annotations

from core.tables import mistakes, scenarios


def test_the_docs_show_which_tests_stand_for_which_scenario() -> None:
    assert scenarios.shown() == scenarios.table(), "run tests/core/tables/scenarios.py"


def test_the_docs_list_every_planted_mistake() -> None:
    assert mistakes.DOCUMENT.read_text(encoding="utf-8") == mistakes.page(), "run tests/core/tables/mistakes.py"


def test_there_are_as_many_planted_mistakes_as_were_asked_for() -> None:
    from core.scheduler.mutants import MUTANTS

    assert len(MUTANTS) >= 40
    assert len({mutant.reason for mutant in MUTANTS}) == len(MUTANTS)
