"""The roles that other parties can play. They decide; whatever is to be done about it is the core's.

A role sees requests and steps through read-only views. It must answer at once: the step waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from baseboard.request.request import RankKey, RequestSpec
from baseboard.request.status import Event
from baseboard.scheduler.gates import Verdict
from baseboard.scheduler.orders import Turn
from baseboard.scheduler.sources import Found
from baseboard.scheduling.views import RequestView, StepView


class Rank(Protocol):
    def key(self, spec: RequestSpec) -> RankKey:
        """Numbers to be ordered by; the smallest is served first. Equal keys are ordered by arrival.

        Asked once for each sample of a request, when the request arrives: a key never changes.
        """
        ...


class Limit(Protocol):
    def clip(self, request: RequestView, want: int, budget: int) -> int:
        """Tokens that ``request`` may catch up with now: 0 to ``want``; ``budget`` is what the step has left."""
        ...


class Gate(Protocol):
    def check(self, request: RequestView, step: StepView) -> Verdict:
        """Whether a request that does not run may come in now."""
        ...


class Observer(Protocol):
    def begin_step(self, step: StepView) -> None: ...
    def admitted(self, request: RequestView, step: StepView) -> None:
        """A waiting request was given its first tokens of this life."""
        ...


class Order(Protocol):
    def serve(self, turn: Turn) -> None:
        """Serve the running, the swapped and the waiting, each at most once, in the order that is wanted.

        The running come before anybody who is let in in the same step; where blocks were taken from somebody, nobody
        is let in.
        """
        ...


class StopRule(Protocol):
    def check(self, request: RequestView) -> Event | None:
        """Asked after each token: ``STOP``, ``REACH_LIMIT`` or ``REPEAT`` ends the request."""
        ...


class How(Enum):
    """How blocks are got back."""

    RECOMPUTE = "recompute"  #: drop them, compute the tokens again
    SWAP = "swap"  #: move them to the host pool; where that is full, recompute


class Preemption(Protocol):
    def choose(self, request: RequestView, num_blocks: int) -> How:
        """How ``request``, the worst that runs, gives its ``num_blocks`` device blocks back."""
        ...


@dataclass(frozen=True, slots=True)
class Transfer:
    """Keys and values of a request that are to be sent into its blocks."""

    ticket: int  #: names this transfer and no other
    request: RequestView
    blocks: tuple[int, ...]  #: the request's whole block table
    first: int  #: position of the first token that is sent
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """A transfer has landed: its first ``num_good`` tokens are there, the rest is lost."""

    ticket: int
    num_good: int


class Connector(Protocol):
    """Something outside that has keys and values. Its other half, in the executor, moves the bytes."""

    def find(self, request: RequestView, num_local: int) -> Found | None:
        """What can be had beyond ``num_local`` tokens: whole blocks, short of the last token."""
        ...

    def begin(self, transfer: Transfer) -> None:
        """Start sending what was found to land later."""
        ...

    def cancel(self, ticket: int) -> None:
        """Of a transfer that was begun and has not arrived: from the return of this call on nothing is written."""
        ...

    def handover(self, request: RequestView) -> Mapping[str, Any] | None:
        """What whoever goes on elsewhere has to know of a request that ends now; None where there is nothing to say."""
        ...

    def keeps(self, request: RequestView, ticket: int) -> bool:
        """Whether the blocks of a request that ends now are still read: then ``read_out`` is to give the ticket."""
        ...

    def arrived(self) -> Iterable[Arrived]:
        """What has landed since the last step."""
        ...

    def read_out(self) -> Iterable[int]:
        """Tickets of ended requests whose blocks nobody reads any more, since the last step."""
        ...
