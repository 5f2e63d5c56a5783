"""Ctrl-C, and a CI system that cancels: a report of what was done, exit code 2, and no worker is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from baseboard_conformance.exits import ExitCode
from baseboard_conformance.report.document import Document, problems

#: Zeroing never returns, and says in a file in which process.
SLEEPER = """
import os
import time
from pathlib import Path

from baseboard.contract import hookimpl
from baseboard_conformance.mutants.plugins import MutantPlugin

class SleeperPlugin(MutantPlugin):
    @hookimpl
    def open_backend(self, device, options):
        from baseboard_conformance.mutants.plain import PlainBackend

        class Sleeper(PlainBackend):
            def zero(self, cache, blocks):
                Path(os.environ["SLEEPER"], str(os.getpid())).touch()
                time.sleep(600)

        return Sleeper(options)

plugin = SleeperPlugin("sleeper", "")
"""
CASES = ("--case", "copy/nothing", "--case", "zero/*")


class Running:
    """A command that has come to the case that never ends."""

    def __init__(self, folder: Path, *command: str, hanging: int = 1) -> None:
        plugins, self.asleep = folder / "plugins", folder / "asleep"
        plugins.mkdir()
        self.asleep.mkdir()
        (plugins / "sleeper.py").write_text(SLEEPER)
        info = plugins / "sleeper-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sleeper\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[baseboard.backends]\nsleeper = sleeper:plugin\n")
        path = os.pathsep.join([str(plugins), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "SLEEPER": str(self.asleep)},
        )
        self.workers = self._wait_for(hanging)

    def _wait_for(self, count: int) -> list[int]:
        until = time.monotonic() + 240
        while time.monotonic() < until and self.process.poll() is None:
            found = [int(path.name) for path in self.asleep.iterdir()]
            if len(found) == count:
                return found
            time.sleep(0.05)
        self.process.kill()
        raise AssertionError(f"it never came to the case that hangs: {self.process.communicate()}")

    def end(self, number: signal.Signals) -> subprocess.CompletedProcess[str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=120)
        return subprocess.CompletedProcess((), self.process.returncode, out, err)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pids: list[int]) -> bool:
    until = time.monotonic() + 60
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(alive, pids))


RUN = ("baseboard_conformance.cli.main", "run", "--backend", "sleeper", *CASES, "--report-dir", "out")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_reports_what_was_done(tmp_path, number) -> None:
    running = Running(tmp_path, *RUN)
    done = running.end(number)
    assert done.returncode == ExitCode.INTERRUPTED, done.stderr
    assert "interrupted: 3 cases were not done" in done.stderr
    assert gone(running.workers)
    report = Document.read(tmp_path / "out/report.json")
    assert [(r.case, r.outcome.value) for r in report.results] == [("copy/nothing", "PASS")]
    assert (report.interrupted, report.plain["verdict"]["word"]) == (True, "partial")
    assert problems(report) == []
    assert "The run was interrupted" in (tmp_path / "out/report.md").read_text()
    assert "The run was interrupted" in (tmp_path / "out/report.html").read_text()


def test_with_several_workers_all_of_them_end(tmp_path) -> None:
    running = Running(tmp_path, *RUN, "--workers", "2", hanging=2)
    assert running.end(signal.SIGINT).returncode == ExitCode.INTERRUPTED
    assert gone(running.workers)
    assert [r["case"] for r in json.loads((tmp_path / "out/report.json").read_text())["results"]] == ["copy/nothing"]


def test_before_any_case_there_is_nothing_to_report(tmp_path) -> None:
    running = Running(tmp_path, *RUN[:4], "--case", "zero/*", "--report-dir", "out")
    done = running.end(signal.SIGINT)
    assert (done.returncode, "there is nothing to report" in done.stderr) == (ExitCode.INTERRUPTED, True)
    assert gone(running.workers)
    assert not (tmp_path / "out/report.json").exists()


def test_under_pytest_it_is_the_same(tmp_path) -> None:
    door = ("pytest", "--pyargs", "baseboard_conformance", "-p", "no:cacheprovider", "--cts-backend", "sleeper")
    cases = ("--cts-cases", "copy/nothing", "--cts-cases", "zero/*")
    running = Running(tmp_path, *door, *cases, "--cts-report-dir", "out")
    done = running.end(signal.SIGINT)
    assert done.returncode == ExitCode.INTERRUPTED, done.stdout
    assert gone(running.workers)
    report = Document.read(tmp_path / "out/report.json")
    assert ([r.case for r in report.results], report.interrupted) == (["copy/nothing"], True)


def test_a_suite_that_is_killed_leaves_nothing_behind(tmp_path) -> None:
    running = Running(tmp_path, *RUN)
    assert running.end(signal.SIGKILL).returncode == -signal.SIGKILL
    assert gone(running.workers)
