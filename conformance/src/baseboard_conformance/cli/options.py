"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

BackendOption: TypeAlias = Annotated[
    str, typer.Option("--backend", "-b", help="Name, as `baseboard backends` shows it.")
]
ProfileOption: TypeAlias = Annotated[str, typer.Option("--profile", "-p", help="smoke, core or full.")]
SpecOption: TypeAlias = Annotated[str, typer.Option("--spec", help="Version of the contract: 1.0, or latest.")]
SeedOption: TypeAlias = Annotated[str, typer.Option("--seed", help="A number, or random; it is printed.")]
TimeoutOption: TypeAlias = Annotated[
    float | None, typer.Option("--timeout", min=0.1, help="Seconds for each case; without it the case's own.")
]
FolderOption: TypeAlias = Annotated[Path | None, typer.Option("--report-dir", help="Folder for the report.")]
