"""Deadline: a source of keys and values is waited for only so long."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from baseboard.request.request import Request
from baseboard.request.status import Status
from baseboard.scheduler.sources import Found, Landed, Place, PrefixSource


class Deadline:
    """A ``PrefixSource`` around another. What has not landed ``seconds`` after it was begun is given up.

    The request then computes those tokens itself, and the source is not asked for it again. Requests wait in the
    order in which they began, so that a step looks at the oldest only.
    """

    def __init__(self, source: PrefixSource, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"load_timeout={seconds} must be above 0 seconds; leave it out to wait for ever")
        self._source: Final = source
        self._seconds: Final = seconds
        self._now = 0.0
        self._began: Final[OrderedDict[Request, float]] = OrderedDict()

    def find(self, request: Request, num_local: int) -> Found | None:
        return self._source.find(request, num_local)

    def begin(self, request: Request, place: Place) -> None:
        self._began.pop(request, None)
        self._began[request] = self._now
        self._source.begin(request, place)

    def cancel(self, request: Request) -> None:
        self._source.cancel(request)

    def handover(self, request: Request) -> Mapping[str, Any] | None:
        return self._source.handover(request)

    def keeps(self, request: Request) -> bool:
        return self._source.keeps(request)

    def landed(self) -> Sequence[Landed]:
        return self._source.landed()

    def read_out(self) -> Sequence[Request]:
        return self._source.read_out()

    def overdue(self, now: float) -> list[Request]:
        """Requests that have waited too long at ``now`` (seconds of the injected clock): they wait no longer."""
        self._now = now
        late: list[Request] = []
        while self._began:
            request, began = next(iter(self._began.items()))
            if request.status is Status.WAITING_FOR_REMOTE_KV:
                if now - began < self._seconds:
                    break
                request.let_down = True
                self._source.cancel(request)
                late.append(request)
            del self._began[request]
        return late
