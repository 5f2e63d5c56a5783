"""Observer: is told what the planner does, for a gate or a limit that has to remember something."""

from __future__ import annotations

from typing import Protocol

from baseboard.request.request import Request, StatusListener
from baseboard.scheduler.gates import StepView


class Recorder(StatusListener, Protocol):
    """Writes down what becomes of requests. Where none is installed nothing is called."""

    def took_in(self) -> None:
        """A result has been taken in."""
        ...


class Observer(Protocol):
    def begin_step(self, view: StepView) -> None:
        """A step is about to be made."""
        ...

    def admitted(self, request: Request, view: StepView) -> None:
        """A waiting request was given its first tokens of this life."""
        ...
