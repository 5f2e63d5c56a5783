"""Where the commands write: answers to stdout, everything about them to stderr."""

from __future__ import annotations

import sys
import unicodedata
from typing import TextIO

from rich.console import Console
from rich.text import Text


def about() -> Console:
    """The console for everything that is no answer."""
    return Console(stderr=True, highlight=False)


def note(text: str, style: str = "dim") -> None:
    """One line on stderr; what looks like markup is text."""
    about().print(Text(text, style=style), soft_wrap=True)


def answers() -> TextIO:
    """Stdout, which never fails because of a letter that its encoding does not have."""
    if sys.stdout.encoding.lower().replace("-", "") != "utf8" and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    return sys.stdout


def printable(text: str, stream: TextIO) -> str:
    """A model may say anything, but it may not steer a terminal: there, control characters become marks."""
    if not stream.isatty():
        return text
    return "".join(["\N{REPLACEMENT CHARACTER}" if _controls(letter) else letter for letter in text])


def _controls(letter: str) -> bool:
    return letter not in "\n\t" and unicodedata.category(letter) == "Cc"
