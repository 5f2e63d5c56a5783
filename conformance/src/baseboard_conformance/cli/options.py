"""Options that several commands have, and reading them."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from baseboard_conformance.case import Profile
from baseboard_conformance.exits import Allowance, UsageError

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


def read_profile(text: str) -> Profile:
    """Raises ``UsageError``."""
    known = {profile.label: profile for profile in Profile}
    if text not in known:
        raise UsageError(f"profile {text!r} is unknown; known are {', '.join(known)}")
    return known[text]


def read_allowance(text: str) -> Allowance:
    """Raises ``UsageError``."""
    known = {allowance.value: allowance for allowance in Allowance}
    if text not in known:
        raise UsageError(f"allowance {text!r} is unknown; known is {' or '.join(filter(None, known))}")
    return known[text]


def read_seed(text: str) -> int:
    """Raises ``UsageError``."""
    if text == "random":
        return secrets.randbelow(1 << 31)
    if not text.isdecimal():
        raise UsageError(f"seed {text!r} is neither a number from 0 nor random")
    return int(text)
