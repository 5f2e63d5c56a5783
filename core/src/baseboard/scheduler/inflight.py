"""A plan that the executor was given and has not answered yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from baseboard.contract.plan import StepPlan
from baseboard.request.request import Request
from baseboard.scheduler.sources import Sending


@dataclass(frozen=True, slots=True)
class InFlight:
    """Whose rows the plan holds, and in which epoch each request was: in another one now, it lost its blocks."""

    plan: StepPlan
    requests: tuple[Request, ...]
    epochs: tuple[int, ...]
    swapped_out: tuple[Request, ...]  #: whose blocks the plan moves to the host
    sendings: tuple[Sending, ...]  #: what sources begin to send once it has run

    def begin_sendings(self, wanted: Mapping[Request, Sending]) -> None:
        """The step has run, and all before it; nothing is sent to who has ended or let go of its blocks meanwhile."""
        for sending in self.sendings:
            if wanted.get(sending.request) is sending:
                sending.begin()

    def untouched(self, request: Request, block_size: int) -> int:
        """Leading tokens of a request that were in the cache before this step and that it does not move."""
        for row, epoch, start in zip(self.requests, self.epochs, self.plan.starts, strict=True):
            if row is request and epoch == request.epoch:
                if any(state.id == request.id for state in self.plan.entered):
                    return 0
                replaced = [u.first * block_size for u in self.plan.updates if u.id == request.id and any(u.blocks)]
                return min((start, *replaced))
        return request.computed
