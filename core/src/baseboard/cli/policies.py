"""``baseboard policies``: by which names requests can be served here, and which plugins cannot be used, and why."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import Annotated, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from baseboard.discovery import SchedulingReport, examine_scheduling
from baseboard.discovery.scheduling import OFFERS
from baseboard.scheduler.policy import POLICIES, PREEMPTIONS
from baseboard.scheduling import SCHEDULING_VERSION

_BUILT_IN: Final = "built in"


def policies(
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Show policies, preemptions, extensions and connectors: the built-in ones, and those of scheduling plugins.

    Exits with 0 when plugins are broken, too: saying so is its purpose.
    """
    with redirect_stdout(sys.stderr):  # what a plugin prints while it loads is no part of the report
        reports = examine_scheduling()
    if as_json:
        typer.echo(json.dumps(_document(reports), indent=2))
        return
    console = Console()
    table = Table("name", "is a", "from", box=SIMPLE_HEAD)
    for kind, names in (("policy", POLICIES), ("preemption", PREEMPTIONS)):
        for name in names:
            table.add_row(name, kind, _BUILT_IN)
    for report in reports:
        kinds = ", ".join(OFFERS[hook] for hook in report.offers)
        origins = "\n".join(f"{source.distribution} {source.version}" for source in report.sources)
        table.add_row(Text(report.name), kinds or Text("cannot be used", style="red"), Text(origins))
    console.print(table)
    for report in reports:
        if report.reason is not None:
            console.print(Text.assemble((f"{report.name}: ", "bold red"), report.reason), soft_wrap=True)


def _document(reports: tuple[SchedulingReport, ...]) -> dict[str, object]:
    return {
        "scheduling_version": SCHEDULING_VERSION,
        "policies": list(POLICIES),
        "preemptions": list(PREEMPTIONS),
        "plugins": [report.as_dict() for report in reports],
    }
