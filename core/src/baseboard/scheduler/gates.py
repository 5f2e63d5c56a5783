"""Gate: holds a request back, though there would be room."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from baseboard.request.request import Request


class Verdict(Enum):
    ADMIT = "admit"
    PASS_OVER = "pass_over"  #: not this one; those behind it may go
    CLOSE = "close"  #: nobody else in this step


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full the step is when a gate is asked."""

    num_running: int  #: places taken, samples still to be forked included


class Gate(Protocol):
    def check(self, request: Request, occupancy: Occupancy) -> Verdict: ...


@dataclass(frozen=True, slots=True)
class MaxRunning:
    """At most this many sequences run; a request with ``n`` samples needs ``n`` places at once."""

    max_num_seqs: int

    def check(self, request: Request, occupancy: Occupancy) -> Verdict:
        return Verdict.ADMIT if occupancy.num_running + request.width <= self.max_num_seqs else Verdict.CLOSE
