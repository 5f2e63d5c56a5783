"""What a scheduling plugin is given, and what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baseboard.scheduler.config import SchedulerConfig
from baseboard.scheduler.preemption import Costs
from baseboard.scheduling.roles import Gate, Limit, Observer, Order, Rank, StopRule


@dataclass(frozen=True, slots=True)
class Settings:
    """The scheduler that the parts are made for."""

    config: SchedulerConfig  #: its limits
    costs: Costs  #: of this machine, as far as they are known when the scheduler is made


@dataclass(frozen=True, slots=True)
class ExtensionParts:
    """What may be added to any policy. An object that has to remember may stand in several columns."""

    limits: Sequence[Limit] = ()
    gates: Sequence[Gate] = ()
    observers: Sequence[Observer] = ()
    stops: Sequence[StopRule] = ()


@dataclass(frozen=True, slots=True)
class PolicyParts:
    """A policy. Without an order it is the built-in one: the running, the swapped, the waiting."""

    rank: Rank
    order: Order | None = None
    limits: Sequence[Limit] = ()
    gates: Sequence[Gate] = ()
    observers: Sequence[Observer] = ()
    stops: Sequence[StopRule] = ()
