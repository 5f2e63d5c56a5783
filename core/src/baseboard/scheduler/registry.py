"""Registry: parts that other parties bring, by the names that users give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from baseboard.scheduler.config import SchedulerConfig
from baseboard.scheduler.faults import Faults
from baseboard.scheduler.gates import Gate
from baseboard.scheduler.limits import Limit
from baseboard.scheduler.observers import Observer
from baseboard.scheduler.orders import Order
from baseboard.scheduler.preemption import CostModel, Preemption
from baseboard.scheduler.ranks import Rank
from baseboard.scheduler.sources import PrefixSource
from baseboard.scheduler.stop import StopRule


@dataclass(frozen=True, slots=True)
class Extras:
    """What may be added to any service."""

    limits: tuple[Limit, ...] = ()
    gates: tuple[Gate, ...] = ()
    observers: tuple[Observer, ...] = ()
    stops: tuple[StopRule, ...] = ()

    def __add__(self, other: Extras) -> Extras:
        """Both; these are asked first."""
        return Extras(
            self.limits + other.limits,
            self.gates + other.gates,
            self.observers + other.observers,
            self.stops + other.stops,
        )


@dataclass(frozen=True, slots=True)
class Service:
    """Who is better than whom, and which kind of work comes first."""

    rank: Rank
    order: Order
    whole_prompts: bool = False  #: prompts are never split
    extras: Extras = field(default_factory=Extras)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a part may know of the scheduler that it is made for."""

    config: SchedulerConfig
    costs: CostModel
    faults: Faults  #: where a guard around the part reports


_T = TypeVar("_T")
#: Makes a part, anew for each scheduler.
Maker: TypeAlias = Callable[[Surroundings], _T]


@dataclass(frozen=True, slots=True)
class Registry:
    """Whoever makes a registry puts guards around what its makers make."""

    services: Mapping[str, Maker[Service]] = field(default_factory=dict[str, Maker[Service]])
    extensions: Mapping[str, Maker[Extras]] = field(default_factory=dict[str, Maker[Extras]])
    preemptions: Mapping[str, Maker[Preemption]] = field(default_factory=dict[str, Maker[Preemption]])
    sources: Mapping[str, Maker[PrefixSource]] = field(default_factory=dict[str, Maker[PrefixSource]])
    failures: Mapping[str, str] = field(default_factory=dict[str, str])  #: by name: why it cannot be used


def why_unknown(what: str, name: str, known: Iterable[str], registry: Registry) -> list[str]:
    """Why ``name`` means nothing here: it failed, or it is not among the known; and what else failed, and why."""
    if name in registry.failures:
        return [f"{what}={name!r} cannot be used: {registry.failures[name]}"]
    failed = [f"{other} cannot be used: {reason}" for other, reason in sorted(registry.failures.items())]
    return [f"{what}={name!r} is unknown; known are {', '.join(sorted(known)) or 'none'}", *failed]
