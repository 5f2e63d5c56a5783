"""``verify``, ``diff`` and ``matrix``: reading reports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from baseboard_conformance.cli.say import complain, say
from baseboard_conformance.exits import ExitCode
from baseboard_conformance.report.comparing import compare, overview
from baseboard_conformance.report.document import Document, problems

ReportArgument = Annotated[Path, typer.Argument(help="A report.json.")]


def verify(report: ReportArgument) -> None:
    """Work out the verdict of a report anew, from its results and the frozen manifest.

    Exits with the verdict's own code, or with 1 when the report does not hold together.
    """
    document = Document.read(report)
    found = problems(document)
    for problem in found:
        complain(problem)
    if found:
        raise typer.Exit(ExitCode.NOT_CONFORMANT)
    say(f"{document.plain['backend']['name']}: {document.plain['verdict']['word']}: {document.sentence}")
    raise typer.Exit(document.code)


def diff(old: ReportArgument, new: ReportArgument) -> None:
    """What changed between two reports; exits with 1 when something got worse."""
    found = compare(Document.read(old), Document.read(new))
    for title, lines in (("worse", found.worse), ("better", found.better), ("other", found.other)):
        for line in lines:
            say(f"{title:7} {line}")
    if not (found.worse or found.better or found.other):
        say("no difference")
    raise typer.Exit(ExitCode.NOT_CONFORMANT if found.worse else ExitCode.CONFORMANT)


def matrix(reports: Annotated[list[Path], typer.Argument(help="Several report.json.")]) -> None:
    """Several backends in one Markdown table."""
    say(overview([Document.read(path) for path in reports]).rstrip())
