"""When what happened to which request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from baseboard.request.request import Request
from baseboard.request.status import Event, FinishReason


class RequestEventKind(str, Enum):
    QUEUED = "queued"
    SCHEDULED = "scheduled"  #: was given tokens for the first time, or again after a preemption
    PREEMPTED = "preempted"  #: gave its blocks back
    SWAPPED = "swapped"  #: had its blocks moved to the host
    FIRST_TOKEN = "first_token"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class RequestEvent:
    request_id: str
    kind: RequestEventKind
    at: float  #: seconds of the injected clock
    reason: FinishReason | None = None  #: of what is finished


_KINDS: Final[Mapping[Event, RequestEventKind]] = MappingProxyType(
    {
        Event.ADMIT: RequestEventKind.SCHEDULED,
        Event.SWAP_IN: RequestEventKind.SCHEDULED,
        Event.PREEMPT: RequestEventKind.PREEMPTED,
        Event.SWAP_OUT: RequestEventKind.SWAPPED,
    }
)


class EventLog:
    """A ``Recorder``: keeps events in the order in which they happened until somebody takes them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock: Final = clock
        self._events: list[RequestEvent] = []
        self._without_token: Final[dict[Request, int]] = {}  # request: outputs that it began with
        self._due: Final[dict[Request, None]] = {}  # those of them that have been scheduled: few at any time

    @property
    def events(self) -> Sequence[RequestEvent]:
        """Those that nobody has taken yet."""
        return tuple(self._events)

    def take(self) -> Sequence[RequestEvent]:
        """Those since the last call."""
        taken = tuple(self._events)
        self._events = []
        return taken

    def opened(self, request: Request) -> None:
        self._without_token[request] = request.num_outputs
        self._note(request, RequestEventKind.QUEUED)

    def changed(self, request: Request, event: Event) -> None:
        if request.finished:
            self._note_first_token(request)
            self._without_token.pop(request, None)
            self._due.pop(request, None)
            self._note(request, RequestEventKind.FINISHED)
        elif (kind := _KINDS.get(event)) is not None:
            self._note(request, kind)
            if kind is RequestEventKind.SCHEDULED and request in self._without_token:
                self._due[request] = None

    def took_in(self) -> None:
        for request in tuple(self._due):
            self._note_first_token(request)

    def _note_first_token(self, request: Request) -> None:
        if request in self._due and request.num_outputs > self._without_token[request]:
            del self._without_token[request], self._due[request]
            self._note(request, RequestEventKind.FIRST_TOKEN)

    def _note(self, request: Request, kind: RequestEventKind) -> None:
        self._events.append(RequestEvent(request.id, kind, self._clock(), request.finish_reason))
