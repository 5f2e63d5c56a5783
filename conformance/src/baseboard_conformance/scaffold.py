"""The beginning of a backend: the suite's template with a name in it."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from baseboard_conformance.exits import SuiteError, UsageError

if TYPE_CHECKING:
    from importlib.abc import Traversable


def scaffold(folder: Path, name: str) -> list[Path]:
    """Write the template to ``folder``; gives the files. Raises ``UsageError`` for a bad name or a folder in use."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UsageError(f"name {name!r}: use lower-case letters, digits and underscores, beginning with a letter")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already and is not empty")
    written: list[Path] = []
    try:
        for parts, text in render(name):
            path = folder.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise SuiteError(f"{folder} cannot be written: {error}") from error
    return written


def render(name: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each file of the template: the parts of its path, and its text."""
    package = f"baseboard_{name}"
    for parts, source in _files(resources.files("baseboard_conformance") / "template", ()):
        text = source.read_text(encoding="utf-8").replace("PACKAGE", package).replace("NAME", name)
        yield tuple(part.replace("PACKAGE", package) for part in parts), text


def _files(folder: Traversable, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name == "__pycache__":
            continue
        parts = (*above, entry.name)
        if entry.is_dir():
            yield from _files(entry, parts)
        else:
            yield parts, entry
