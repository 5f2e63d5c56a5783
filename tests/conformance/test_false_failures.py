"""A right backend passes whatever the seed: here some of them, in a long run 200 for each case of the core profile."""

from __future__ import annotations

import json
import os

import pytest

from baseboard_conformance.bench import Bench
from baseboard_conformance.case import Profile, case_seed
from baseboard_conformance.cases import all_cases
from baseboard_conformance.execute import execute
from baseboard_conformance.exits import ExitCode
from baseboard_conformance.mutants.catalog import MUTANTS
from baseboard_conformance.mutants.plugins import write_plugins
from baseboard_conformance.outcome import Outcome

CASES = all_cases()
NUMERIC = [case for case in CASES.values() if case.profile <= Profile.CORE and case.numeric]
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


def test_rows_whose_terms_cancel_are_no_failures(opened) -> None:
    """Heads of one element: with these seeds a row is thousands of times smaller than the terms that it is the sum of.

    Measured against the row itself, right results came to 1.11 (seed 1) and 1.09 (seed 3) of the allowed error.
    """
    cases = [CASES[f"declared.head_sizes/chunked/{dtype}"] for dtype in ("float32", "float16")]
    assert list(failures(cases, (1, 3), opened)) == []


@pytest.mark.skipif(
    os.environ.get("BASEBOARD_LONG_TESTS") != "1", reason="takes an hour on one core: BASEBOARD_LONG_TESTS=1"
)
@pytest.mark.timeout(6 * 3600)
def test_core_holds_for_200_seeds(cli) -> None:
    done = cli("soak", "--backend", "reference", "--profile", "core", "--seeds", 200)
    assert done.returncode == ExitCode.CONFORMANT, done.stdout
    assert f"200 seeds, {200 * len(NUMERIC)} results, 0 failed" in done.stdout


# --- the command ------------------------------------------------------------------------------------------------------

SOAK = ("soak", "--case", "scale/*", "--journal", "journal.jsonl", "--backend")


def rounds(tmp_path):
    return [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()[1:]]


def test_a_journal_is_gone_on_with(cli, tmp_path) -> None:
    first = cli(*SOAK, "reference", "--seeds", 2)
    assert (first.returncode, "2 seeds, 6 results, 0 failed" in first.stdout) == (ExitCode.CONFORMANT, True)
    path = tmp_path / "journal.jsonl"
    kept = rounds(tmp_path)
    assert [each["seed"] for each in kept] == [0, 1]
    assert all(0 < each["worst_ratio"] < 1 and each["worst_case"].startswith("scale/") for each in kept)
    path.write_text(path.read_text() + '{"seed": 2, "execu')  # somebody pulled the plug
    second = cli(*SOAK, "reference", "--seeds", 3)
    assert "seed 1:" not in second.stdout
    assert "3 seeds, 9 results, 0 failed" in second.stdout
    assert rounds(tmp_path)[:2] == kept
    assert [each["seed"] for each in rounds(tmp_path)] == [0, 1, 2]


def test_a_journal_of_something_else_is_refused(cli, tmp_path) -> None:
    assert cli(*SOAK, "reference", "--seeds", 1).returncode == ExitCode.CONFORMANT
    other = cli(*SOAK, "reference", "--seeds", 1, "--profile", "smoke")
    assert (other.returncode, "name another file" in other.stderr) == (ExitCode.USAGE, True)
    for text in ("no journal\n", "", '{"kind": 1}\n{"seed": 1}\n'):
        (tmp_path / "journal.jsonl").write_text(text)
        refused = cli(*SOAK, "reference", "--seeds", 1)
        assert (refused.returncode, "journal" in refused.stderr) == (ExitCode.USAGE, True), text


def test_a_wrong_backend_fails_with_every_seed(cli, tmp_path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    write_plugins(folder, [mutant for mutant in MUTANTS if mutant.name == "scale_from_head_size"])
    done = cli(*SOAK, "scale-from-head-size", "--seeds", 2, paths=(folder,))
    assert done.returncode == ExitCode.NOT_CONFORMANT
    assert "2 seeds, 6 results, 6 failed" in done.stdout
    assert "seed 1: FAIL scale/chunked/float16: attention is wrong" in done.stdout


def test_cases_without_numbers_have_nothing_to_soak(cli) -> None:
    done = cli("soak", "--backend", "reference", "--case", "copy/*")
    assert (done.returncode, "is numeric" in done.stderr) == (ExitCode.USAGE, True)
