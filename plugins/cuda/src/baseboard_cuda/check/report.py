"""The report of ``make gpu-check``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_WORDS: Final = {True: "yes", False: "**no**", None: "not judged"}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the report. ``passed`` is None where nothing could be judged."""

    what: str
    result: str
    passed: bool | None


def report(title: str, facts: Mapping[str, str], lines: Sequence[Line]) -> str:
    """Markdown."""
    return "\n".join(
        [
            f"# {title}",
            "",
            *(f"* {name}: {value}" for name, value in facts.items()),
            "",
            "| what | result | as it should be |",
            "| --- | --- | --- |",
            *(f"| {line.what} | {_cell(line.result)} | {_WORDS[line.passed]} |" for line in lines),
            "",
        ]
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
