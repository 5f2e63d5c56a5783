"""Stop rule: ends a request for what its tokens look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from baseboard.request.request import Request
from baseboard.request.status import Event


class StopRule(Protocol):
    def check(self, request: Request) -> Event | None:
        """Asked after each token; the event that ends the request, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Repetition:
    """Ends a request whose output goes round in circles: the last ``pattern`` tokens, for any length up to
    ``max_pattern``, stand there ``times`` times in a row.
    """

    max_pattern: int
    times: int

    def __post_init__(self) -> None:
        if self.max_pattern < 1 or self.times < 2:
            raise ValueError(f"max_pattern={self.max_pattern} must be at least 1, times={self.times} at least 2")

    def check(self, request: Request) -> Event | None:
        tokens, outputs = request.tokens, request.num_outputs
        for length in range(1, min(self.max_pattern, outputs // self.times) + 1):
            span = length * self.times
            tail = tokens[-span:]
            if tail[length:] == tail[:-length]:
                return Event.REPEAT
        return None
