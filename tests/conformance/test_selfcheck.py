"""The suite catches what it must catch: each wrong backend by its named case; and it lets right ones pass."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from baseboard.discovery import Installation, PluginSource, open_backend
from baseboard_conformance.bench import Bench
from baseboard_conformance.case import Profile, case_seed
from baseboard_conformance.cases import all_cases
from baseboard_conformance.execute import execute
from baseboard_conformance.mutants.catalog import MUTANTS, VARIANTS, Mutant, Variant
from baseboard_conformance.mutants.plugins import MutantPlugin
from baseboard_conformance.outcome import Outcome
from baseboard_conformance.selfcheck import Finding, check_mutants, check_variants, described, screen, table

CASES = all_cases()
DOCS = Path(__file__).parents[2] / "docs/conformance.md"
CHANGES = Path(__file__).parents[2] / "conformance/CHANGELOG.md"
#: What only a process of its own shows: imports, memory, the end of the process.
APART = ("rules", "memory")
IN_PROCESS = [
    m for m in MUTANTS if m.outcome is Outcome.FAIL and m.shim == "plain" and m.killer.partition("/")[0] not in APART
]
APART_HERE = ("over_reports", "changes_core", "fragile_probe")
long = pytest.mark.skipif(
    os.environ.get("BASEBOARD_LONG_TESTS") != "1", reason="takes a quarter of an hour: BASEBOARD_LONG_TESTS=1"
)


def bad(findings: list[Finding]) -> list[str]:
    return [f"{finding.name}: {finding.words}" for finding in findings if not finding.good]


def test_every_mutant_names_a_case_of_the_manifest() -> None:
    assert len(MUTANTS) >= 40
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert [mutant.name for mutant in MUTANTS if mutant.killer not in CASES] == []
    assert len(IN_PROCESS) >= 60


@contextmanager
def opened(member: Mutant | Variant) -> Iterator[Bench]:
    """The member's backend in this process, by the way that discovery goes."""
    source = PluginSource(member.backend, member.place, "here", "0", lambda: MutantPlugin(member.backend, member.place))
    with open_backend(member.backend, installation=Installation(backends=(source,))) as backend:
        yield Bench(backend, member.backend, seed=0, shrinking=0)


def outcome_of(case: str, bench: Bench) -> tuple[Outcome, str]:
    result = execute(CASES[case], replace(bench, seed=case_seed(case, 0))).result
    return result.outcome, result.message


@pytest.mark.parametrize("mutant", IN_PROCESS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_killed_by_its_case(mutant) -> None:
    with opened(mutant) as bench:
        outcome, message = outcome_of(mutant.killer, bench)
    assert outcome is mutant.outcome, message


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v.name != "noisy"], ids=lambda variant: variant.name)
def test_a_right_backend_passes_what_kills_others(variant) -> None:
    with opened(variant) as bench:
        found = {case: outcome_of(case, bench) for case in dict.fromkeys(m.killer for m in IN_PROCESS)}
    refused = {"block_size/decode/float32/b48"}  # not declared
    optional = {"operators": "operator.", "recording": "graph."}  # what the others leave to the core
    refused |= {
        case for case in found for name, group in optional.items() if name != variant.name and case.startswith(group)
    }
    assert {
        case: words for case, (outcome, words) in found.items() if outcome is not Outcome.PASS and case not in refused
    } == {}
    assert {found[case][0] for case in refused} == {Outcome.NOT_CLAIMED}


def test_mutants_in_processes_of_their_own_are_killed() -> None:
    assert bad(check_mutants([mutant for mutant in MUTANTS if mutant.name in APART_HERE])) == []


def test_a_right_variant_in_a_process_of_its_own_passes() -> None:
    few = [CASES[name] for name in ("copy/all_layers", "swap/fifo", "memory/follows")]
    assert bad(check_variants(few, [variant for variant in VARIANTS if variant.name == "asynchronous_swaps"])) == []


def test_a_mutant_that_does_not_load_is_void() -> None:
    (finding,) = check_mutants([Mutant("broken", "right:NoSuchClass", "copy/nothing")])
    assert not finding.good
    assert finding.words.startswith("void: ")


def test_a_mutant_that_survives_is_told() -> None:
    (finding,) = check_mutants([Mutant("harmless", "right:Plain", "copy/nothing")])
    assert not finding.good
    assert finding.words.startswith("copy/nothing gave PASS, right is FAIL")
    assert "**survives** `copy/nothing`" in table([finding])


def test_a_mutant_must_die_as_its_entry_says() -> None:
    (finding,) = check_mutants([Mutant("crashes", "wrong_manners:Crashes", "swap/nothing", Outcome.FAIL)])
    assert not finding.good


def test_the_docs_have_the_table_of_all_mutants() -> None:
    """As ``selfcheck --table`` writes it, but for the last column, which a run alone knows."""
    text = DOCS.read_text()
    written = table([Finding(m.name, described(m), m.killer, good=True, words="") for m in MUTANTS]).splitlines()
    begin = text.index(written[0])
    assert first_columns(text[begin:].partition("\n\n")[0].splitlines()) == first_columns(written)
    assert "**survives**" not in text
    assert f"{len(MUTANTS)} wrong backends and {len(VARIANTS)} right ones" in CHANGES.read_text()


def first_columns(lines: list[str]) -> list[list[str]]:
    return [line.split(" | ")[:3] for line in lines]


@long
def test_every_mutant_is_killed() -> None:
    assert bad(check_mutants(MUTANTS)) == []


@long
def test_every_right_variant_passes_core() -> None:
    assert screen()
    assert bad(check_variants([case for case in CASES.values() if case.profile <= Profile.CORE])) == []
