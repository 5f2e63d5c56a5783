"""A connector of another party as the scheduler knows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, TypeVar, cast

from baseboard.contract.errors import ContractError
from baseboard.request.request import Request
from baseboard.scheduler.sources import Found, Landed, Landing, Place
from baseboard.scheduling.guard import Guard, one_of, whole
from baseboard.scheduling.roles import Arrived, Connector, Transfer
from baseboard.scheduling.views import RequestView

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _UnderWay:
    request: Request
    num_tokens: int


class GuardedSource:
    """A ``PrefixSource``.

    A connector that fails to call off a transfer may still write into the blocks: these are never used again, and
    the request ends. What it says of transfers that it was not given, or that were called off, counts for nothing.
    """

    def __init__(self, guard: Guard, role: Connector, block_size: int) -> None:
        self._guard: Final = guard
        self._role: Final = role
        self._block_size: Final = block_size
        self._tickets: Final = count()
        self._under_way: Final[dict[int, _UnderWay]] = {}  # by ticket
        self._ticket_of: Final[dict[Request, int]] = {}  # of the same transfers
        self._reading: Final[dict[int, Request]] = {}  # ended, their blocks are still read
        self._out_of_hand: Final[set[Request]] = set()  # may still be written to

    def find(self, request: Request, num_local: int) -> Found | None:
        view = RequestView(request)
        return self._guard.ask(
            (request.spec,), "find", lambda: self._usable(request, num_local, self._role.find(view, num_local)), None
        )

    def begin(self, request: Request, place: Place) -> None:
        ticket = next(self._tickets)
        transfer = Transfer(ticket, RequestView(request), tuple(place.blocks), place.first, place.num_tokens)
        self._under_way[ticket] = _UnderWay(request, place.num_tokens)
        self._ticket_of[request] = ticket
        self._guard.ask((request.spec,), "begin", lambda: self._role.begin(transfer), None)

    def cancel(self, request: Request) -> None:
        ticket = self._ticket_of.pop(request, None)
        if ticket is None:
            return
        del self._under_way[ticket]
        self._out_of_hand.add(request)
        if self._guard.ask((request.spec,), "cancel", lambda: self._called_off(ticket), False):
            self._out_of_hand.discard(request)

    def handover(self, request: Request) -> Mapping[str, Any] | None:
        view = RequestView(request)
        return self._guard.ask((request.spec,), "handover", lambda: _told(self._role.handover(view)), None)

    def keeps(self, request: Request) -> bool:
        if request in self._out_of_hand:
            return True
        ticket, view = next(self._tickets), RequestView(request)
        kept = self._guard.ask((request.spec,), "keeps", lambda: one_of(self._role.keeps(view, ticket), bool), False)
        if kept:
            self._reading[ticket] = request
        return kept

    def landed(self) -> list[Landed]:
        touched = tuple(each.request.spec for each in self._under_way.values())
        arrivals = self._guard.ask(touched, "arrived", lambda: _all(self._role.arrived(), Arrived), [])
        return [self._land(arrived) for arrived in arrivals if arrived.ticket in self._under_way]

    def _land(self, arrived: Arrived) -> Landed:
        done = self._under_way.pop(arrived.ticket)
        del self._ticket_of[done.request]
        good = self._guard.ask((done.request.spec,), "arrived", lambda: whole(arrived.num_good, 0, done.num_tokens), 0)
        return Landed(done.request, good)

    def read_out(self) -> list[Request]:
        tickets = self._guard.ask((), "read_out", lambda: _all(self._role.read_out(), int), [])
        return [self._reading.pop(ticket) for ticket in tickets if ticket in self._reading]

    def _called_off(self, ticket: int) -> bool:
        self._role.cancel(ticket)
        return True

    def _usable(self, request: Request, num_local: int, answer: object) -> Found | None:
        """What a request can be given. Raises ``ContractError`` for what it cannot."""
        if answer is None:
            return None
        found = one_of(answer, Found)
        one_of(found.landing, Landing)
        whole(found.num_tokens, 0, max(len(request.tokens) - 1 - num_local, 0))
        if found.num_tokens % self._block_size:
            raise ContractError(f"it found {found.num_tokens} tokens, not whole blocks of {self._block_size}")
        return found


def _told(answer: object) -> Mapping[str, Any] | None:
    """Raises ``ContractError`` for what is no mapping of names."""
    return None if answer is None else cast("Mapping[str, Any]", one_of(answer, Mapping))


def _all(answers: Iterable[object], kind: type[_T]) -> list[_T]:
    return [one_of(answer, kind) for answer in answers]
