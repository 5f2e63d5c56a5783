"""How long a request took, and for what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from baseboard.scheduler.events import RequestEvent, RequestEventKind


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Times in seconds of the engine's clock, and what follows from them; None for what never came."""

    queued_at: float
    first_scheduled_at: float | None
    first_token_at: float | None
    finished_at: float
    num_later_tokens: int  #: outputs of all samples beyond the first of each

    @property
    def queue_seconds(self) -> float | None:
        """Until it was first given tokens to compute."""
        return None if self.first_scheduled_at is None else self.first_scheduled_at - self.queued_at

    @property
    def seconds_to_first_token(self) -> float | None:
        return None if self.first_token_at is None else self.first_token_at - self.queued_at

    @property
    def seconds_per_token(self) -> float | None:
        """From the first token on, per token after it, over all samples."""
        if self.first_token_at is None or not self.num_later_tokens:
            return None
        return (self.finished_at - self.first_token_at) / self.num_later_tokens


class Milestones:
    """Collects the events of all samples of one prompt."""

    def __init__(self) -> None:
        self._first: Final[dict[RequestEventKind, float]] = {}
        self._last: Final[dict[RequestEventKind, float]] = {}

    def note(self, event: RequestEvent) -> None:
        self._first.setdefault(event.kind, event.at)
        self._last[event.kind] = event.at

    def metrics(self, num_later_tokens: int) -> RequestMetrics | None:
        """None where nobody kept a log."""
        if RequestEventKind.QUEUED not in self._first:
            return None
        return RequestMetrics(
            queued_at=self._first[RequestEventKind.QUEUED],
            first_scheduled_at=self._first.get(RequestEventKind.SCHEDULED),
            first_token_at=self._first.get(RequestEventKind.FIRST_TOKEN),
            finished_at=self._last[RequestEventKind.FINISHED],
            num_later_tokens=num_later_tokens,
        )
