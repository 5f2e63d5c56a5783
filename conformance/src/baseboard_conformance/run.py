"""A whole run: what to do, doing it, and what it shows. Both doors, command line and pytest, come through here."""

from __future__ import annotations

import datetime
import difflib
import fnmatch
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from baseboard.discovery import read_installation
from baseboard_conformance import __version__
from baseboard_conformance.case import Case, Profile
from baseboard_conformance.cases import all_cases
from baseboard_conformance.conclusion import Conclusion, conclude
from baseboard_conformance.exits import Allowance, ExitCode, SuiteError, UsageError
from baseboard_conformance.manifest import Manifest, drifted, load_manifest
from baseboard_conformance.outcome import Result
from baseboard_conformance.report.document import Document
from baseboard_conformance.runner.crew import Crew
from baseboard_conformance.runner.process import Launch
from baseboard_conformance.runner.station import Settings
from baseboard_conformance.waivers import Waiver, apply, check_waivers, read_waivers


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asks for."""

    backend: str
    profile: Profile = Profile.CORE
    spec: str | None = None  #: None: the newest
    seed: int = 0
    patterns: tuple[str, ...] = ()  #: ids or patterns; none: every case of the profile
    waivers: Path | None = None
    timeout: float | None = None
    workers: int = 1
    allowance: Allowance = Allowance.NOTHING
    report_dir: Path | None = None
    paths: tuple[Path, ...] = ()  #: put before the import path of the workers
    command: tuple[str, ...] = ()  #: as the user typed it

    def exit_code(self, report: Document) -> ExitCode:
        """How a run of this request ends that made ``report``."""
        if report.interrupted:
            return ExitCode.INTERRUPTED
        excused = self.allowance is Allowance.PARTIAL and report.code is ExitCode.PARTIAL
        return ExitCode.CONFORMANT if excused else report.code


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that makes sense."""

    request: Request
    manifest: Manifest
    cases: tuple[Case, ...]
    waivers: tuple[Waiver, ...]

    def settings(self) -> Settings:
        wanted = self.request
        folder = None if wanted.report_dir is None else wanted.report_dir.resolve() / "failures"
        if folder is not None:
            _make(folder)
        return Settings(Launch(wanted.backend, wanted.paths), wanted.seed, wanted.workers, wanted.timeout, folder)


def plan(request: Request) -> Plan:
    """Raises ``UsageError``, ``SpecError`` or ``StaleWaiverError`` for what cannot be run as asked."""
    if not request.paths:
        _check_backend(request.backend)
    manifest = load_manifest(request.spec)
    cases = all_cases()
    changed = drifted(manifest, cases)
    if changed:
        raise SuiteError(
            f"{len(changed)} cases do not demand what manifest {manifest.spec} froze: {', '.join(changed[:5])}"
        )
    waivers = read_waivers(request.waivers) if request.waivers is not None else ()
    check_waivers(waivers, cases, datetime.datetime.now(tz=datetime.timezone.utc).date())
    return Plan(request, manifest, _selected(cases, manifest, request), waivers)


@dataclass(slots=True)
class Journal:
    """Results as they come in, the waivers' view applied."""

    plan: Plan
    told: Callable[[Result], None]
    results: list[Result] = field(default_factory=list[Result])
    began: float = field(default_factory=time.time)  #: seconds since 1970
    interrupted: bool = False

    def take(self, result: Result) -> Result:
        folder = self.plan.request.report_dir
        if result.evidence is not None and folder is not None:
            result = replace(result, evidence=os.path.relpath(result.evidence, folder.resolve()))
        result = apply(self.plan.waivers, result)
        self.results.append(result)
        self.told(result)
        return result


def run(wanted: Plan, told: Callable[[Result], None]) -> Document:
    """Do it; ``told`` hears each result. Raises ``UnavailableError`` when the backend does not open.

    Ctrl-C ends the cases under way; the report is of those that were done. With none it is passed on.
    """
    journal = Journal(wanted, told)
    crew = Crew(wanted.settings())
    try:
        crew.do(wanted.cases, lambda result: _quiet(journal.take(result)))
    except KeyboardInterrupt:
        if not journal.results:
            raise
        journal.interrupted = True
    return document(journal, crew.facts)


def document(journal: Journal, facts: Mapping[str, Any]) -> Document:
    """The report; ``facts`` are what a worker said of the backend."""
    wanted, results = journal.plan, journal.results
    conclusion: Conclusion = conclude(
        results, wanted.manifest, wanted.request.profile, facts["backend"]["capabilities"]["dtypes"]
    )
    return Document.make(
        conclusion,
        results,
        {
            "suite": {"name": "baseboard-conformance", "version": __version__},
            "spec": wanted.manifest.spec,
            "manifest": wanted.manifest.hash,
            "profile": wanted.request.profile.label,
            "seed": wanted.request.seed,
            "patterns": list(wanted.request.patterns),
            "command": list(wanted.request.command),
            "started": datetime.datetime.fromtimestamp(journal.began, tz=datetime.timezone.utc).isoformat(
                timespec="seconds"
            ),
            "duration": round(time.time() - journal.began, 3),
            "interrupted": journal.interrupted,
            "backend": {**facts["backend"], "asked": wanted.request.backend},
            "environment": environment(facts["libraries"]),
            "waivers": [
                {"case": w.case, "kind": w.kind, "reason": w.reason, "issue": w.issue, "expires": w.expires.isoformat()}
                for w in wanted.waivers
            ],
        },
    )


def environment(libraries: Mapping[str, str]) -> dict[str, Any]:
    """What the run ran on."""
    from importlib.metadata import version

    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count() or 0,
        "libraries": {**libraries, "baseboard": version("baseboard"), "pluggy": version("pluggy")},
    }


def _selected(cases: Mapping[str, Case], manifest: Manifest, request: Request) -> tuple[Case, ...]:
    required = manifest.required(request.profile)
    fresh = {i for i, case in cases.items() if i not in manifest.entries and case.profile <= request.profile}
    if not request.patterns:
        return tuple(case for i, case in cases.items() if i in required or i in fresh)
    # A case that is named is run whatever its profile is.
    for pattern in request.patterns:
        if not any(fnmatch.fnmatchcase(i, pattern) for i in cases):
            near = difflib.get_close_matches(pattern, cases, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise UsageError(f"no case matches {pattern!r}{hint}")
    return tuple(c for i, c in cases.items() if any(fnmatch.fnmatchcase(i, pattern) for pattern in request.patterns))


def _check_backend(name: str) -> None:
    """Names only: nothing is imported in this process."""
    known = sorted({source.name for source in read_installation().backends})
    wanted = name.partition(":")[0]
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(f"backend {wanted!r} is not installed; {hint}installed are: {', '.join(known) or 'none'}")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SuiteError(f"the report cannot be written to {folder.parent}: {error}") from error


def _quiet(_: object) -> None:
    """A result was taken; nobody waits for what came of it."""
