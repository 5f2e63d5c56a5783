"""A plan that the executor was given and has not answered yet."""

from __future__ import annotations

from dataclasses import dataclass

from baseboard.contract.plan import StepPlan
from baseboard.request.request import Request


@dataclass(frozen=True, slots=True)
class InFlight:
    """Whose rows the plan holds, and in which epoch each request was: another epoch now means a stale result."""

    plan: StepPlan
    requests: tuple[Request, ...]
    epochs: tuple[int, ...]
    swapped_out: tuple[Request, ...]  #: whose blocks the plan moves to the host
