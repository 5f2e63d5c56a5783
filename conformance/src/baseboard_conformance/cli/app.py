"""The command tree."""

from __future__ import annotations

from typing import Annotated

import typer

from baseboard_conformance import __version__
from baseboard_conformance.cli.cases import explain, list_cases, perf, replay, support
from baseboard_conformance.cli.develop import init, selfcheck
from baseboard_conformance.cli.reports import diff, matrix, verify
from baseboard_conformance.cli.running import run
from baseboard_conformance.cli.say import say
from baseboard_conformance.cli.soaking import soak


def build_app() -> typer.Typer:
    """A new application with every command attached."""
    app = typer.Typer(
        name="baseboard-conformance", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
    )
    app.callback()(root)
    for command in (run, explain, replay, soak, support, perf, verify, diff, matrix, selfcheck, init):
        app.command()(command)
    app.command("list")(list_cases)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"baseboard-conformance {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Proves a Baseboard backend: every promise of the plugin contract, one case after the other."""
