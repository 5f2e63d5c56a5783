"""``soak``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from baseboard_conformance import __version__
from baseboard_conformance.cli.options import BackendOption, ProfileOption, TimeoutOption
from baseboard_conformance.cli.say import say
from baseboard_conformance.exits import ExitCode, UsageError
from baseboard_conformance.reading import read_profile
from baseboard_conformance.run import Plan, Request, plan
from baseboard_conformance.runner.process import Launch
from baseboard_conformance.runner.station import Settings, Station
from baseboard_conformance.soaking import Journal, Round, Totals
from baseboard_conformance.soaking import soak as soak_all


def soak(
    backend: BackendOption,
    profile: ProfileOption = "core",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many.")] = 200,
    first_seed: Annotated[int, typer.Option("--first-seed", min=0, help="They are counted from here.")] = 0,
    journal: Annotated[Path | None, typer.Option("--journal", help="File to go on from after a stop.")] = None,
    case: Annotated[list[str] | None, typer.Option("--case", "-c", help="Only these: ids or patterns.")] = None,
    timeout: TimeoutOption = None,
) -> None:
    """Run the numeric cases of a profile with many seeds.

    A right backend passes with each: on the reference backend a failure is one of the suite's own tolerances.
    Exits with 1 when a case failed.
    """
    wanted = plan(Request(backend, read_profile(profile), patterns=tuple(case or ()), timeout=timeout))
    cases = [each for each in wanted.cases if each.numeric]
    if not cases:
        raise UsageError(f"none of the {len(wanted.cases)} cases is numeric: the others do not depend on their inputs")
    kept = Journal(journal, _identity(wanted))
    say(f"{len(cases)} cases with {seeds} seeds from {first_seed}; {len(kept.rounds)} rounds are in the journal")
    with Station(Settings(Launch(backend), timeout=timeout, shrinking=0)) as station:
        totals = soak_all(station, cases, range(first_seed, first_seed + seeds), kept, _tell)
    _conclude(totals, backend)


def _identity(wanted: Plan) -> dict[str, object]:
    request = wanted.request
    return {
        "suite": __version__,
        "manifest": wanted.manifest.hash,
        "backend": request.backend,
        "profile": request.profile.label,
        "patterns": list(request.patterns),
    }


def _tell(done: Round) -> None:
    say(
        f"seed {done.seed}: {done.executed} executed, {len(done.failures)} failed, worst {done.worst_ratio:.3f} of the "
        f"allowed error in {done.worst_case}; {done.seconds:.1f} s"
    )
    for failure in done.failures:
        say(f"  {failure}")


def _conclude(totals: Totals, backend: str) -> None:
    counts = f"{totals.seeds} seeds, {totals.results} results, {len(totals.failures)} failed"
    say(f"{counts}; {totals.results - totals.executed} not claimed")
    if totals.worst is not None:
        worst = totals.worst
        say(f"worst: {worst.worst_ratio:.3f} of the allowed error in {worst.worst_case} with seed {worst.seed}")
    for failure in totals.failures:
        say(f"  {failure}")
    if totals.failures:
        say(f"again: baseboard-conformance replay CASE --backend {backend} --seed SEED")
        raise typer.Exit(ExitCode.NOT_CONFORMANT)
    if not totals.executed:
        raise typer.Exit(ExitCode.NOTHING_RAN)
