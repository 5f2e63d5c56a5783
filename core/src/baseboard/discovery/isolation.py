"""Running foreign code so that its failure is a fact to record, not the end of the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from baseboard.contract import BaseboardError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failure:
    """What foreign code raised."""

    error: BaseException

    @property
    def reason(self) -> str:
        return one_line(self.error)


def attempt(action: Callable[[], T]) -> T | Failure:
    """The result of ``action``, or its failure. Only Ctrl-C passes.

    More than ``Exception`` is caught: a plugin may leave by ``SystemExit``, and a panic in a Rust extension derives
    from ``BaseException``.
    """
    try:
        return action()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Failure(error)


def one_line(error: BaseException) -> str:
    """The error on one line; our own errors explain themselves, others are named by their type."""
    text = " ".join(str(error).split())
    if isinstance(error, BaseboardError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
