"""``pytest --pyargs baseboard_conformance --cts-backend NAME``, and nothing at all without that option."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from baseboard_conformance.exits import ExitCode
from baseboard_conformance.mutants.catalog import MUTANTS, VARIANTS
from baseboard_conformance.mutants.plugins import write_plugins

DOOR = ("--pyargs", "baseboard_conformance", "-p", "no:cacheprovider", "-q")


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "plugins"
    folder.mkdir()
    write_plugins(folder, (*MUTANTS, *VARIANTS))

    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])},
        )

    return call


def test_without_the_option_it_is_inert(run, tmp_path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "import sys\ndef test(): assert 'baseboard_conformance.run' not in sys.modules\n"
    )
    done = run("-q", "test_mine.py")
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout
    assert run(*DOOR).returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_it_tells_outcomes_and_writes_the_report(run, tmp_path) -> None:
    cases = ("--cts-cases", "copy/*", "--cts-cases", "sync/*")
    done = run(*DOOR, "--cts-backend", "copy-chains", *cases, "--cts-report-dir", "out")
    assert done.returncode == ExitCode.NOT_CONFORMANT, done.stdout
    assert "FAIL copy/illegal" in done.stdout
    assert "1 failed, 4 passed, 2 not_claimed" in done.stdout
    assert "not conformant: 1 of 7 cases failed: copy/illegal" in done.stdout
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["verdict"]["counts"] == {"FAIL": 1, "NOT_CLAIMED": 2, "PASS": 4}


def test_some_cases_are_partial(run) -> None:
    few = (*DOOR, "--cts-backend", "plain", "--cts-cases", "zero/*")
    assert run(*few).returncode == ExitCode.PARTIAL
    assert run(*few, "--cts-allow", "partial").returncode == ExitCode.CONFORMANT


def test_a_failure_says_how_to_do_it_again(run) -> None:
    done = run(*DOOR, "--cts-backend", "copy-chains", "--cts-cases", "copy/illegal", "--cts-seed", "7")
    assert "again: baseboard-conformance replay copy/illegal --backend copy-chains --seed 7" in done.stdout


def test_a_time_and_workers_as_on_the_command_line(run, tmp_path) -> None:
    """``hangs`` never comes back from ``zero_blocks``; the others are not held up by it."""
    cases = ("--cts-cases", "zero/nothing", "--cts-cases", "copy/*")
    limits = ("--cts-timeout", "5", "--cts-workers", "2")
    done = run(*DOOR, "--cts-backend", "hangs", *cases, *limits, "--cts-report-dir", "out")
    assert done.returncode == ExitCode.NOT_CONFORMANT, done.stdout
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["verdict"]["counts"] == {"PASS": 5, "TIMEOUT": 1}
    assert "no answer within 5 seconds" in done.stdout


def test_what_pytest_deselects_is_not_done(run, tmp_path) -> None:
    cases = ("--cts-cases", "zero/*", "-k", "illegal")
    assert run(*DOOR, "--cts-backend", "plain", *cases, "--cts-report-dir", "out").returncode == ExitCode.PARTIAL
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert [result["case"] for result in report["results"]] == ["zero/illegal"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--cts-timeout", "0"), "less than 0.1 seconds"),
        (("--cts-workers", "0"), "not from 1 to 64"),
        (("--cts-allow", "all"), "known is partial"),
        (("--cts-profile", "huge"), "known are smoke, core, full"),
        (("-n", "2"), "--cts-workers N instead"),
    ],
)
def test_options_that_make_no_sense_are_refused(run, option, words) -> None:
    done = run(*DOOR, "--cts-backend", "plain", *option)
    assert (done.returncode, words in done.stderr) == (ExitCode.USAGE, True), done.stderr


def test_what_cannot_be_run_is_a_usage_error(run) -> None:
    done = run(*DOOR, "--cts-backend", "nobody")
    assert done.returncode == ExitCode.USAGE == pytest.ExitCode.USAGE_ERROR
    assert "'nobody' is not installed" in done.stderr
