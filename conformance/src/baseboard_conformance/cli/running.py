"""``run``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from baseboard_conformance.cli.options import (
    BackendOption,
    FolderOption,
    ProfileOption,
    SeedOption,
    SpecOption,
    TimeoutOption,
)
from baseboard_conformance.cli.say import say, tell_result, tell_summary
from baseboard_conformance.exits import InterruptedRunError
from baseboard_conformance.reading import read_allowance, read_profile, read_seed
from baseboard_conformance.report.folder import write_report
from baseboard_conformance.run import Request, plan
from baseboard_conformance.run import run as run_plan


def run(
    backend: BackendOption,
    profile: ProfileOption = "core",
    report_dir: FolderOption = None,
    spec: SpecOption = "latest",
    seed: SeedOption = "0",
    case: Annotated[list[str] | None, typer.Option("--case", "-c", help="Only these: ids or patterns.")] = None,
    waivers: Annotated[Path | None, typer.Option("--waivers", help="File of known failures.")] = None,
    timeout: TimeoutOption = None,
    workers: Annotated[int, typer.Option("--workers", min=1, max=64, help="Processes that do cases at once.")] = 1,
    allow: Annotated[str, typer.Option("--allow", help="partial: exit with 0 when cases are waived or left out.")] = "",
) -> None:
    """Run the cases of a profile against a backend and judge it.

    Exit codes: 0 conformant, 1 not conformant, 2 interrupted, 3 fault of the suite or the machine, 4 usage, 5 nothing
    ran, 10 partial, 11 stale waiver, 12 backend not available, 13 contract version not known.
    """
    request = Request(
        backend=backend,
        profile=read_profile(profile),
        spec=spec,
        seed=read_seed(seed),
        patterns=tuple(case or ()),
        waivers=waivers,
        timeout=timeout,
        workers=workers,
        allowance=read_allowance(allow),
        report_dir=report_dir,
        command=("baseboard-conformance", *sys.argv[1:]),
    )
    wanted = plan(request)
    say(f"{len(wanted.cases)} cases of contract {wanted.manifest.spec}, profile {profile}, seed {request.seed}")
    try:
        document = run_plan(wanted, tell_result)
    except KeyboardInterrupt:
        raise InterruptedRunError("interrupted before a case was done: there is nothing to report") from None
    tell_summary(document)
    if report_dir is not None:
        write_report(document, report_dir)
        say(f"report: {report_dir / 'report.html'}")
    if document.interrupted:
        raise InterruptedRunError(f"interrupted: {len(wanted.cases) - len(document.results)} cases were not done")
    raise typer.Exit(request.exit_code(document))
