"""The command tree. A command's module may not import torch at its top: ``baseboard backends`` starts at once."""

from __future__ import annotations

from typing import Annotated

import importlib_metadata
import typer
from rich.console import Console
from rich.text import Text

from baseboard.cli.backends import backends
from baseboard.cli.chat import chat
from baseboard.cli.generate import generate
from baseboard.cli.policies import policies
from baseboard.cli.simulate import simulate
from baseboard.contract import API_VERSION


def build_app() -> typer.Typer:
    """A new application with every command attached."""
    app = typer.Typer(name="baseboard", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(root)
    app.command("generate")(generate)
    app.command("chat")(chat)
    app.command("backends")(backends)
    app.command("policies")(policies)
    app.command("simulate")(simulate)
    return app


def print_error(error: Exception) -> None:
    """One message on stderr, red on a terminal; text in brackets is no markup."""
    console = Console(stderr=True)
    console.print(Text.assemble(("error: ", "bold red"), (str(error), "red")), soft_wrap=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"baseboard {importlib_metadata.version('baseboard')} (plugin contract {API_VERSION})")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """An LLM inference core into which hardware plugs like cards into a board."""
