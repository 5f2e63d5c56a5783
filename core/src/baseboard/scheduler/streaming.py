"""Prompts that come in pieces: what is there is computed, the request keeps its place and waits for the rest."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from baseboard.contract.errors import RequestRejected
from baseboard.request.request import Request
from baseboard.request.status import Event, Status
from baseboard.scheduler.book import Book
from baseboard.scheduler.config import SchedulerConfig


class StreamingInput:
    """Lets prompts grow.

    ::

        prompt so far   p p p p p p|p p p          the last token is left, whatever piece it came with:
        computed        ^ ^ ^ ^ ^ ^ ^ ^            something is sampled from it once the prompt is whole
    """

    def __init__(self, book: Book, config: SchedulerConfig) -> None:
        self._book: Final = book
        self._config: Final = config

    def open(self, request: Request) -> None:
        """More of this request's prompt is to come; it has only just been added.

        Raises ``RequestRejected``, and ends the request, where an encoder has to read something of it first.
        """
        if request.spec.media or request.spec.source:
            request.error = "a prompt with inputs for an encoder, or with a source, has to come whole"
            self._book.finish(request, Event.FAIL)
            raise RequestRejected(f"{request.error}: submit request {request.id!r} when all of it is there")
        request.input_open = True
        self.settle(request)

    def add(self, request: Request, tokens: Sequence[int]) -> None:
        """Append to the prompt. Raises ``RequestRejected``, and changes nothing, for what can never run."""
        if request.finished or not request.input_open:
            state = request.status.value if request.finished else "whole"
            raise RequestRejected(f"request {request.id!r} is {state} and takes no more input: submit a new request")
        if not tokens:
            raise RequestRejected(f"the input for request {request.id!r} is empty: give at least one token")
        try:
            piece = array("i", tokens)
        except (OverflowError, TypeError) as error:
            raise RequestRejected(f"the input for request {request.id!r} holds what is no token id: {error}") from error
        length = request.num_prompt + len(piece)
        self._config.check_prompt(length, request.spec.params.n)
        wake = _event(request)
        request.grow_prompt(piece, self._config.max_total(length, request.spec.params.max_tokens))
        if request.started:
            self._book.stats.num_prompt_tokens += len(piece)
        if request.resident:
            self._book.enter_anew(request)
        self._wake(request, wake)

    def end(self, request: Request) -> None:
        """The prompt is whole: its last token is computed, and sampled from. Doing so twice is harmless."""
        if not request.finished and request.input_open:
            request.input_open = False
            self._wake(request, _event(request))

    def settle(self, request: Request) -> None:
        """A waiting request with nothing to compute yet (a prompt of one token) leaves the queue until more comes."""
        if request.status is Status.WAITING and request.idle:
            self._book.move(request, Event.AWAIT_INPUT)

    def _wake(self, request: Request, event: Event) -> None:
        if request.status is Status.WAITING_FOR_STREAMING_INPUT:
            self._book.move(request, event)


def _event(request: Request) -> Event:
    """How a request that waits for input comes back: by where its keys and values are."""
    if request.resident:
        return Event.INPUT_CAME
    if request.computed:
        return Event.INPUT_CAME_SWAPPED
    return Event.INPUT_CAME_PREEMPTED if request.started else Event.INPUT_CAME_NEW
