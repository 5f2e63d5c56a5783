"""A progress for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


class Watching:
    """A progress that keeps what it is told, and may raise."""

    def __init__(self, error_at: int | None = None) -> None:
        self.stages: list[str] = []
        self.steps: list[tuple[int, dict[str, int]]] = []
        self.batches: list[int] = []
        self.error_at = error_at

    @contextmanager
    def loading(self) -> Iterator[Callable[[str], None]]:
        yield self.stages.append

    @contextmanager
    def generating(self, num_prompts: int) -> Iterator[Watching]:
        self.batches.append(num_prompts)
        yield self

    def step(self, num_finished: int, stats: Mapping[str, int]) -> None:
        self.steps.append((num_finished, dict(stats)))
        if len(self.steps) == self.error_at:
            raise KeyboardInterrupt
