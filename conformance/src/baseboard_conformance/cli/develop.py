"""``selfcheck`` and ``init``: for those who work on the suite, and for those who begin a backend."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from baseboard_conformance.cli.say import complain, say
from baseboard_conformance.exits import ExitCode, UsageError
from baseboard_conformance.reading import read_profile


def selfcheck(
    mutant: Annotated[list[str] | None, typer.Option("--mutant", "-m", help="Only these; may be repeated.")] = None,
    table: Annotated[Path | None, typer.Option("--table", help="Write who killed whom to this Markdown file.")] = None,
    variants: Annotated[
        str, typer.Option("--variants", help="Profile that right variants must pass; none leaves them out.")
    ] = "smoke",
) -> None:
    """Prove the suite: every shipped wrong backend is killed by its case, every right one passes."""
    from baseboard_conformance import selfcheck as checking
    from baseboard_conformance.cases import all_cases
    from baseboard_conformance.mutants.catalog import MUTANTS

    known = {each.name: each for each in MUTANTS}
    unknown = [name for name in mutant or () if name not in known]
    if unknown:
        raise UsageError(f"there is no mutant {', '.join(unknown)}; there are {', '.join(known)}")
    wanted = [known[name] for name in mutant] if mutant else list(MUTANTS)

    def told(finding: checking.Finding) -> None:
        state = "ok" if finding.good else "BAD"
        against = "right variant" if finding.killer is None else f"killed by {finding.killer}"
        say(f"{state:4} {finding.name:30} {against}: {finding.words}")

    findings = checking.check_mutants(wanted, checking.screen() if table is not None else (), told)
    if variants != "none":
        profile = read_profile(variants)
        cases = [case for case in all_cases().values() if case.profile <= profile]
        findings += checking.check_variants(cases, told=told)
    if table is not None:
        table.write_text(checking.table(findings), encoding="utf-8")
    bad = [finding.name for finding in findings if not finding.good]
    if bad:
        complain(f"{len(bad)} of {len(findings)}: {', '.join(bad)}")
        raise typer.Exit(ExitCode.INTERNAL_ERROR)
    say(f"all {len(findings)} as they should be")


def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for the plugin.")],
    name: Annotated[str, typer.Option("--name", help="Name by which users choose the backend.")] = "mychip",
) -> None:
    """Begin a backend: a package that installs, is found, and passes, in plain torch. Replace it part by part."""
    from baseboard_conformance.scaffold import scaffold

    for path in scaffold(folder, name):
        say(str(path))
    say(f"\nnext: pip install -e {folder}; baseboard-conformance run --backend {name} --profile smoke")
