"""``list``, ``explain``, ``replay``, ``support`` and ``perf``: single cases."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from baseboard_conformance.case import Case, Profile
from baseboard_conformance.cases import all_cases
from baseboard_conformance.claims import declared
from baseboard_conformance.cli.options import (
    BackendOption,
    ProfileOption,
    SeedOption,
    TimeoutOption,
)
from baseboard_conformance.cli.say import say
from baseboard_conformance.exits import ExitCode, UsageError
from baseboard_conformance.manifest import load_manifest
from baseboard_conformance.outcome import Outcome
from baseboard_conformance.outside import listed
from baseboard_conformance.reading import read_profile, read_seed
from baseboard_conformance.run import Request, plan
from baseboard_conformance.runner.station import Station

CaseArgument = Annotated[str, typer.Argument(help="Id of a case.")]


def list_cases(
    profile: ProfileOption = "full", pattern: Annotated[str, typer.Argument(help="Pattern of ids.")] = "*"
) -> None:
    """Ids of the cases of a profile; those that decide nothing yet are marked."""
    import fnmatch

    manifest, wanted = load_manifest(), read_profile(profile)
    shown = [c for c in all_cases().values() if c.profile <= wanted and fnmatch.fnmatchcase(c.id, pattern)]
    if not shown:
        raise UsageError(f"no case of profile {profile} matches {pattern!r}")
    for case in shown:
        say(f"{case.profile.label:5} {case.id}{'' if case.id in manifest.entries else '  (provisional)'}")


def explain(case: CaseArgument) -> None:
    """What a case demands: the contract's text, where the right answer comes from, and how exact it must be."""
    found = _case(case)
    entry = load_manifest().entries.get(found.id)
    say(found.id)
    for name, text in {
        "contract": found.clause,
        "title": found.title,
        "oracle": found.oracle,
        "tolerance": found.tolerance,
        "profile": found.profile.label,
        "needs": _needs(found),
        "made of": ", ".join(f"{k}={v}" for k, v in found.params.items())
        or "nothing but the backend's preferred sizes",
        "manifest": f"contract {load_manifest().spec}, {entry.hash}"
        if entry
        else "provisional: reported, decides nothing",
    }.items():
        say(f"  {name:10} {text}")


def replay(
    what: Annotated[str, typer.Argument(help="Id of a case, or an .npz file that a failure left.")],
    backend: BackendOption,
    seed: SeedOption = "0",
    timeout: TimeoutOption = None,
) -> None:
    """Do one case again: with its seed, or with the very inputs that a failure saved."""
    request = Request(backend=backend, seed=read_seed(seed), timeout=timeout, patterns=(what,))
    if what.endswith(".npz"):
        raise typer.Exit(_replay_file(Path(what), backend))
    _case(what)
    wanted = plan(request)
    with Station(wanted.settings()) as station:
        result = station.do(wanted.cases[0])
    say(f"{result.outcome.value} {result.case} (seed {result.seed}, {result.duration:.2f} s)")
    say("\n".join([*filter(None, [result.message]), *(f"  {k} {v:.4g}" for k, v in result.measures.items())]))
    if result.outcome is Outcome.ERROR:
        raise typer.Exit(ExitCode.INTERNAL_ERROR)
    raise typer.Exit(ExitCode.NOT_CONFORMANT if result.outcome.bad else ExitCode.CONFORMANT)


def support(backend: BackendOption) -> None:
    """What a backend declares, and how many cases that claims."""
    wanted = plan(Request(backend=backend))
    with Station(wanted.settings()) as station:
        facts = station.facts["backend"]
    for name, value in facts["capabilities"].items():
        say(f"  {name:20} {listed(value)}")
    say(f"  {facts['distribution']} {facts['version']} on {facts['device']['name']}")
    can = declared(facts["capabilities"])
    for profile in Profile:
        cases = [case for case in all_cases().values() if case.profile <= profile]
        say(f"  {profile.label}: claims {sum(not case.need.missing(can) for case in cases)} of {len(cases)} cases")


def perf(
    backend: BackendOption, seconds: Annotated[float, typer.Option(min=0.05, help="For each measurement.")] = 0.5
) -> None:
    """Time, bytes and GB/s of copies, swaps, zeroing and decoding. It decides nothing about conformance."""
    from baseboard_conformance.performance import measure

    plan(Request(backend=backend))
    for line in measure(backend, seconds):
        rate = line.nbytes / line.seconds / 1e9
        say(f"{line.name:22} {line.seconds * 1e6:10.1f} us  {line.nbytes / 1e6:9.2f} MB  {rate:7.2f} GB/s")


def _case(name: str) -> Case:
    import difflib

    cases = all_cases()
    if name not in cases:
        near = difflib.get_close_matches(name, cases, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; see `baseboard-conformance list`"
        raise UsageError(f"there is no case {name!r}{hint}")
    return cases[name]


def _needs(case: Case) -> str:
    need = case.need
    parts = {
        "dtype": need.dtype,
        "block size": need.block_size,
        "head size": need.head_size,
        "query heads per KV head": need.ratio,
        "features": ", ".join(sorted(need.features)) or None,
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items() if value is not None) or "nothing"


def _replay_file(path: Path, backend: str) -> ExitCode:
    """In this process: it is what a debugger is attached to."""
    from baseboard.discovery import open_backend
    from baseboard_conformance.bench import Bench
    from baseboard_conformance.evidence import load, origin, unpack
    from baseboard_conformance.judging import check_problem
    from baseboard_conformance.outcome import CheckFailedError

    arrays = load(path)
    facts = origin(arrays)
    problem, content = unpack(arrays)
    plan(Request(backend=backend))
    with open_backend(backend) as opened:
        try:
            measure = check_problem(
                Bench(opened, backend, facts["seed"]), problem, content, f"the inputs of {facts['case']}"
            )
        except CheckFailedError as failure:
            say(f"FAIL {facts['case']}\n{failure}")
            return ExitCode.NOT_CONFORMANT
    say(f"PASS {facts['case']}: {measure.worst:.3f} of the allowed error")
    return ExitCode.CONFORMANT
