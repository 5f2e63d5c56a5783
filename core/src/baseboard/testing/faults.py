"""What a test may have go wrong in the world around the scheduler."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from baseboard.scheduler.policy import PREEMPTIONS
from baseboard.scheduler.preemption import CostModel
from baseboard.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from baseboard.testing.handle import Handle


class ArtificialPreemption:
    """Before each step every running request loses its blocks with some probability, in a way drawn at random."""

    def __init__(self, probability: float, seed: int) -> None:
        if not 0 <= probability <= 1:
            raise ValueError(f"preempt_probability={probability} must be from 0 to 1")
        self._probability: Final = probability
        self._random: Final = Random(seed)

    def strike(self, scheduler: Scheduler, costs: CostModel) -> None:
        """Between two steps."""
        if not self._probability:
            return
        for request in scheduler.running:
            if self._random.random() < self._probability:
                mode = self._random.choice(sorted(PREEMPTIONS))
                scheduler.preempt(request, PREEMPTIONS[mode](costs))


class LateAborts:
    """Aborts that the scheduler hears of some steps after they were asked for."""

    def __init__(self) -> None:
        self._due: Final[list[tuple[int, Handle]]] = []

    def add(self, handle: Handle, step: int) -> None:
        self._due.append((step, handle))

    def due(self, step: int) -> list[Handle]:
        """Those to be delivered before this step; each once."""
        now = [(at, handle) for at, handle in self._due if at <= step]
        for each in now:
            self._due.remove(each)
        return [handle for _, handle in now]
