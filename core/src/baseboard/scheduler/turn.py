"""One step while it is made, as roles see it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain
from typing import Protocol

from baseboard.request.request import Request
from baseboard.scheduler.book import Book
from baseboard.scheduler.draft import Draft
from baseboard.scheduler.gates import StepInputs


class Server(Protocol):
    """Who gives tokens to one kind of requests after the other: the planner."""

    def serve_running(self, turn: StepTurn) -> None: ...
    def serve_loaded(self, turn: StepTurn) -> None: ...
    def serve_swapped(self, turn: StepTurn) -> None: ...
    def serve_waiting(self, turn: StepTurn) -> None: ...


class StepTurn:
    """One step while it is made: what an order may do and a gate may see."""

    __slots__ = ("_book", "_planner", "draft", "inputs")

    def __init__(self, planner: Server, book: Book, draft: Draft, inputs: StepInputs) -> None:
        self._planner = planner
        self._book = book
        self.draft = draft
        self.inputs = inputs

    @property
    def num_running(self) -> int:
        return self._book.num_places

    @property
    def running(self) -> Iterable[Request]:
        return chain(self._book.running, self._book.idle_holders)

    @property
    def adapters(self) -> Collection[str]:
        running = self._book.running.adapters
        kept = [each.spec.adapter for each in self._book.idle_holders if each.spec.adapter is not None]
        return {*running, *kept} if kept else running

    @property
    def waiting(self) -> Iterable[Request]:
        return self._book.waiting

    @property
    def preempted(self) -> bool:
        return bool(self.draft.preempted or self.draft.swapped_out)

    @property
    def num_rows(self) -> int:
        return len(self.draft.ids)

    @property
    def any_swapped(self) -> bool:
        return bool(len(self._book.swapped) or len(self._book.loaded))

    def serve_running(self) -> None:
        self._planner.serve_running(self)

    def serve_swapped(self) -> None:
        self._planner.serve_loaded(self)
        if not self.preempted:
            self._planner.serve_swapped(self)

    def serve_waiting(self) -> None:
        self._planner.serve_waiting(self)
