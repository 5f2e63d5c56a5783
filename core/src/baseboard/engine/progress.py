"""What a user who waits may be shown; the engine only tells, it shows nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class BatchReport(Protocol):
    def step(self, num_finished: int, stats: Mapping[str, int]) -> None:
        """A step was run; so many prompts of the batch are finished."""
        ...


class Progress(Protocol):
    def loading(self) -> AbstractContextManager[Callable[[str], None]]:
        """While a model is loaded; the callable is told each stage in a few words."""
        ...

    def generating(self, num_prompts: int) -> AbstractContextManager[BatchReport]:
        """While a batch runs."""
        ...


class SilentProgress:
    """Shows nothing."""

    @contextmanager
    def loading(self) -> Iterator[Callable[[str], None]]:
        yield self._ignore

    @contextmanager
    def generating(self, num_prompts: int) -> Iterator[SilentProgress]:
        del num_prompts
        yield self

    def step(self, num_finished: int, stats: Mapping[str, int]) -> None:
        del num_finished, stats

    def _ignore(self, stage: str) -> None:
        del stage
