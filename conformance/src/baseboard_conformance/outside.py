"""Data from outside - JSON, TOML, what a plugin returns - whose type is known only once it was looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast


def as_table(value: object) -> dict[str, Any] | None:
    """``value`` where it is a table; None where it is anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def as_list(value: object) -> list[Any] | None:
    """``value`` where it is a list; None where it is anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else None


def listed(value: object) -> str:
    """For people: the members of a list with commas between them, or the value itself."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, cast("Sequence[object]", value)))
    return str(value)
