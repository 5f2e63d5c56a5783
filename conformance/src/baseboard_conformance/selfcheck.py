"""Proof that the suite catches what it must catch: every mutant is killed by its case, every right variant passes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from baseboard_conformance.case import Case, Profile
from baseboard_conformance.cases import all_cases
from baseboard_conformance.exits import UnavailableError
from baseboard_conformance.mutants.catalog import MUTANTS, VARIANTS, Mutant, Variant
from baseboard_conformance.mutants.plugins import write_plugins
from baseboard_conformance.outcome import Outcome, Result
from baseboard_conformance.runner.process import Launch
from baseboard_conformance.runner.station import Settings, Station

#: A hanging mutant is given this long.
_PATIENCE: Final = 20.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one mutant or variant."""

    name: str
    what: str  #: the class's own words
    killer: str | None  #: the case that must kill it; None for a right variant
    good: bool
    words: str  #: why not good; for a good mutant the first line of the failure
    others: tuple[str, ...] = ()  #: further cases of the screen that failed


def screen() -> tuple[Case, ...]:
    """Quick cases that every mutant is run against, to see who else would have found it."""
    kept = [c for c in all_cases().values() if c.profile is Profile.SMOKE and not c.alone]
    slow = ("trace", "rules", "sync", "layout")
    return tuple(c for c in kept if c.need.dtype in {None, "float32"} and c.group.partition(".")[0] not in slow)


def check_mutants(
    wanted: Sequence[Mutant] = MUTANTS, screened: Sequence[Case] = (), told: Callable[[Finding], None] = lambda _: None
) -> list[Finding]:
    """Each mutant against its killer, and against ``screened``."""
    with tempfile.TemporaryDirectory(prefix="baseboard-mutants-") as folder:
        write_plugins(Path(folder), wanted)
        findings: list[Finding] = []
        for mutant in wanted:
            findings.append(_check_mutant(mutant, Path(folder), screened))
            told(findings[-1])
        return findings


def check_variants(
    cases: Sequence[Case], wanted: Sequence[Variant] = VARIANTS, told: Callable[[Finding], None] = lambda _: None
) -> list[Finding]:
    """Each variant against ``cases``: none may fail."""
    with tempfile.TemporaryDirectory(prefix="baseboard-variants-") as folder:
        write_plugins(Path(folder), wanted)
        findings: list[Finding] = []
        for variant in wanted:
            findings.append(_check_variant(variant, Path(folder), cases))
            told(findings[-1])
        return findings


def _check_mutant(mutant: Mutant, folder: Path, screened: Sequence[Case]) -> Finding:
    what = described(mutant)
    try:
        with Station(_settings(mutant.backend, folder)) as station:
            result = station.do(all_cases()[mutant.killer])
            others = _failed(station, (c for c in screened if c.id != mutant.killer))
    except UnavailableError as error:
        # A mutant that does not load proves nothing.
        return Finding(mutant.name, what, mutant.killer, good=False, words=f"void: {error}")
    good = result.outcome is mutant.outcome
    words = result.message.partition("\n")[0]
    if not good:
        words = f"{mutant.killer} gave {result.outcome.value}, right is {mutant.outcome.value}: {words}"
    return Finding(mutant.name, what, mutant.killer, good, words, others)


def _failed(station: Station, cases: Iterable[Case]) -> tuple[str, ...]:
    return tuple(case.id for case in cases if station.do(case).outcome.bad)


def _check_variant(variant: Variant, folder: Path, cases: Sequence[Case]) -> Finding:
    what = described(variant)
    failed: list[Result] = []
    passed = 0
    try:
        with Station(_settings(variant.backend, folder)) as station:
            for case in cases:
                if case.alone:
                    station.renew()
                result = station.do(case)
                passed += result.outcome is Outcome.PASS
                if result.outcome not in {Outcome.PASS, Outcome.NOT_CLAIMED}:
                    failed.append(result)
    except UnavailableError as error:
        return Finding(variant.name, what, None, good=False, words=f"void: {error}")
    words = "; ".join(f"{r.outcome.value} {r.case}: {r.message[:500]}" for r in failed[:3]) or f"passes {passed} cases"
    return Finding(variant.name, what, None, good=not failed and passed > 0, words=words)


def _settings(backend: str, folder: Path) -> Settings:
    return Settings(Launch(backend, (folder,)), timeout=_PATIENCE if backend == "hangs" else None, shrinking=0)


def described(member: Mutant | Variant) -> str:
    """What is wrong with it, or unusual: the first line of the class's docstring."""
    from importlib import import_module

    shims = {
        "heavy": "The entry point's module imports torch.",
        "private": "Imports the core's scheduler.",
        "fragile": "The probe imports torch, and fails where torch does.",
    }
    if isinstance(member, Mutant) and member.shim in shims:
        return shims[member.shim]
    module, _, name = member.place.partition(":")
    found = getattr(import_module(f"baseboard_conformance.mutants.{module}"), name, None)
    return str(found.__doc__).partition("\n")[0]


def table(findings: Sequence[Finding]) -> str:
    """Who killed whom, as a Markdown table."""
    lines = ["| mutant | what is wrong | killed by | also by |", "| --- | --- | --- | --- |"]
    for finding in findings:
        if finding.killer is None:
            continue
        killer = f"`{finding.killer}`" if finding.good else f"**survives** `{finding.killer}`"
        others = [f"`{case}`" for case in finding.others[:2]]
        more = f" and {len(finding.others) - 2} more" if len(finding.others) > 2 else ""
        lines.append(f"| {finding.name} | {finding.what} | {killer} | {', '.join(others)}{more} |")
    return "\n".join(lines) + "\n"
