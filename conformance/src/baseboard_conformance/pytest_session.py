"""One conformance run inside one pytest run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from baseboard_conformance.case import Case
from baseboard_conformance.exits import SuiteError
from baseboard_conformance.outcome import Outcome, Result
from baseboard_conformance.reading import read_allowance, read_profile, read_seed
from baseboard_conformance.report.document import Document
from baseboard_conformance.report.folder import write_report
from baseboard_conformance.report.replaying import replay_command
from baseboard_conformance.run import Journal, Plan, Request, document, plan
from baseboard_conformance.runner.ahead import Ahead

#: Name under which a test's outcome is kept with its report.
_PROPERTY: Final = "cts_outcome"


class ConformanceSession:
    """Opens the backend with the first case; writes the report and sets the exit code at the end."""

    def __init__(self, wanted: Plan) -> None:
        self._plan: Final = wanted
        self._journal: Final = Journal(wanted, lambda _: None)
        self._selected: Sequence[Case] = ()
        self._ahead: Ahead | None = None
        self._document: Document | None = None
        self._complaint: str | None = None

    @property
    def cases(self) -> Sequence[Case]:
        return self._plan.cases

    def do(self, case: Case) -> Result:
        """The case's result: it may have been done already while other tests were told."""
        if self._ahead is None:
            self._ahead = Ahead(self._plan.settings(), self._selected)
        try:
            return self._journal.take(self._ahead.result(case))
        except SuiteError as error:
            pytest.exit(str(error), returncode=error.code)

    def again(self, case: Case) -> str:
        """The command that does the case once more."""
        request = self._plan.request
        return replay_command(case.id, request.backend, request.seed)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """What was deselected is not done."""
        calls = [getattr(item, "callspec", None) for item in session.items]
        cases = [call.params.get("conformance_case") for call in calls if call is not None]
        self._selected = [case for case in cases if isinstance(case, Case)]

    def pytest_report_header(self) -> str:
        request, manifest = self._plan.request, self._plan.manifest
        return (
            f"baseboard conformance: backend {request.backend}, contract {manifest.spec}, "
            f"profile {request.profile.label}, seed {request.seed}, {len(self.cases)} cases"
        )

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """What is not claimed or waived counts for itself: neither as passed nor as skipped."""
        outcome = str(dict(report.user_properties).get(_PROPERTY))
        if report.when != "call" or outcome not in {Outcome.NOT_CLAIMED.value, Outcome.WAIVED.value}:
            return None
        return outcome.lower(), outcome[0].lower(), outcome

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """The verdict decides how pytest exits, unless pytest has a complaint of its own."""
        if self._ahead is None:
            return
        self._ahead.give_up()
        self._journal.interrupted = session.exitstatus == pytest.ExitCode.INTERRUPTED
        if not self._journal.results:
            return
        self._document = document(self._journal, self._ahead.facts)
        code = self._plan.request.exit_code(self._document)
        if self._plan.request.report_dir is not None:
            try:
                write_report(self._document, self._plan.request.report_dir)
            except SuiteError as error:
                code, self._complaint = error.code, str(error)
        if session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            session.exitstatus = int(code)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._document is not None:
            verdict = self._document.plain["verdict"]
            terminalreporter.write_sep("=", "baseboard conformance")
            terminalreporter.write_line(f"{verdict['word']}: {verdict['sentence']}")
        if self._complaint is not None:
            terminalreporter.write_line(f"error: {self._complaint}")


def session_of(config: pytest.Config) -> ConformanceSession:
    """Raises ``pytest.UsageError`` for what cannot be run as asked."""
    if hasattr(config, "workerinput") or config.getoption("numprocesses", None):
        raise pytest.UsageError("a conformance run is one run: give --cts-workers N instead of pytest-xdist's -n")

    def option(name: str) -> str | None:
        value = config.getoption(name)
        return None if value is None else str(value)

    waivers, folder, timeout = option("--cts-waivers"), option("--cts-report-dir"), option("--cts-timeout")
    try:
        request = Request(
            backend=str(config.getoption("--cts-backend")),
            profile=read_profile(str(option("--cts-profile"))),
            spec=option("--cts-spec"),
            seed=read_seed(str(option("--cts-seed"))),
            patterns=tuple(config.getoption("--cts-cases") or ()),
            waivers=None if waivers is None else Path(waivers),
            timeout=None if timeout is None else float(timeout),
            workers=int(str(option("--cts-workers"))),
            allowance=read_allowance(str(option("--cts-allow"))),
            report_dir=None if folder is None else Path(folder),
            command=("pytest", *sys.argv[1:]),
        )
        return ConformanceSession(plan(request))
    except SuiteError as error:
        raise pytest.UsageError(str(error)) from error
