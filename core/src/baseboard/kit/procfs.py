"""Reading the small text files of ``/proc`` and ``/sys``: what is missing or unreadable reads as nothing. No torch."""

from __future__ import annotations

from pathlib import Path


def read_lines(path: Path) -> list[str]:
    """The lines of ``path``, none if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def read_integer(path: Path) -> int | None:
    """The number in ``path``; None if there is another word (``max``) or no such file."""
    lines = read_lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdecimal() else None


def read_counters(path: Path) -> dict[str, int]:
    """Lines ``name number`` or ``name: number kB`` as a mapping; kibibytes become bytes."""
    counters: dict[str, int] = {}
    for line in read_lines(path):
        name, number, *unit = [*line.split(), "", ""]
        if number.isdecimal():
            counters[name.rstrip(":")] = int(number) * (1024 if unit[0] == "kB" else 1)
    return counters
