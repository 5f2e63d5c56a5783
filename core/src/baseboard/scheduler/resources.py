"""Resource: something a row needs beside tokens and blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from baseboard.contract.plan import StepResult
from baseboard.request.request import Request, RequestSpec
from baseboard.scheduler.draft import Draft
from baseboard.scheduler.inflight import InFlight


class Resource(Protocol):
    """Owner of what it hands out. How far a row may go for its sake it says as a ``Limit``; here it takes and gives.

    Nothing is taken before the row is sure to run: so no request holds some of it while it waits for more.
    """

    def check(self, spec: RequestSpec) -> None:
        """Raise ``RequestRejected`` for a request that could never get what it needs."""
        ...

    def begin_step(self, draft: Draft) -> None:
        """A step is about to be made; each is followed by one ``landed`` or ``failed``, in order."""
        ...

    def begin(self, request: Request, num_cached: int) -> int:
        """After how many of its ``num_cached`` cached tokens a request should begin: all, or fewer."""
        ...

    def awaits(self, request: Request) -> bool:
        """Whether a request that gets nothing in this step waits for something outside: others may pass it then."""
        ...

    def take(self, request: Request, count: int, draft: Draft) -> None:
        """The row is in the plan, with ``count`` tokens up to ``request.computed``."""
        ...

    def give_back(self, request: Request) -> None:
        """The request has lost its row: preempted, ended, or about to start over."""
        ...

    def landed(self, flight: InFlight, result: StepResult, later: Sequence[InFlight]) -> Iterable[Request]:
        """A step's result is in; returns requests of ``later`` plans whose tokens are not to be trusted."""
        ...

    def failed(self, flight: InFlight, later: Sequence[InFlight]) -> Iterable[Request]:
        """A step came to nothing; returns as ``landed`` does."""
        ...

    def reset(self) -> None:
        """Nothing made until now is to be used by later requests."""
        ...

    def check_books(self) -> None:
        """Raise ``AssertionError`` on any broken invariant."""
        ...
