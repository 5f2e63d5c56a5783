"""From a plugin's hooks to makers for the registry: what a hook gives is checked, and guarded role by role."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from baseboard.contract.errors import BaseboardError, ContractError
from baseboard.scheduler.orders import Continuous
from baseboard.scheduler.preemption import Preemption
from baseboard.scheduler.registry import Extras, Service, Surroundings
from baseboard.scheduler.sources import PrefixSource
from baseboard.scheduling.guard import Guard, one_of
from baseboard.scheduling.guarded import (
    GuardedGate,
    GuardedLimit,
    GuardedObserver,
    GuardedOrder,
    GuardedPreemption,
    GuardedRank,
    GuardedStopRule,
)
from baseboard.scheduling.guarded_source import GuardedSource
from baseboard.scheduling.hookspecs import SchedulingHooks
from baseboard.scheduling.parts import ExtensionParts, PolicyParts, Settings

_T = TypeVar("_T")

_CONNECTOR: Final = ("find", "begin", "cancel", "keeps", "arrived", "read_out")


class Plugin:
    """A loaded plugin. Its makers raise ``ContractError``, naming it, for a hook that fails or gives no such part."""

    def __init__(self, name: str, hooks: SchedulingHooks) -> None:
        self._name: Final = name
        self._hooks: Final = hooks

    def service(self, around: Surroundings) -> Service:
        return self._made(
            "policy", lambda: self._service(self._guard(around), self._hooks.policy(settings=_of(around)))
        )

    def extras(self, around: Surroundings) -> Extras:
        return self._made(
            "extension", lambda: self._extras(self._guard(around), self._hooks.extension(settings=_of(around)))
        )

    def preemption(self, around: Surroundings) -> Preemption:
        def make() -> Preemption:
            role = self._hooks.preemption(settings=_of(around))
            return GuardedPreemption(self._guard(around), _playing(role, ("choose",)))

        return self._made("preemption", make)

    def source(self, around: Surroundings) -> PrefixSource:
        def make() -> PrefixSource:
            role = self._hooks.prefix_source(settings=_of(around))
            return GuardedSource(self._guard(around), _playing(role, _CONNECTOR), around.config.block_size)

        return self._made("prefix_source", make)

    def _guard(self, around: Surroundings) -> Guard:
        return Guard(self._name, around.faults)

    def _made(self, hook: str, make: Callable[[], _T]) -> _T:
        try:
            return make()
        except (Exception, SystemExit) as error:  # whatever another party raises is told as its own
            said = str(error) if isinstance(error, BaseboardError) else f"{type(error).__name__}: {error}"
            raise ContractError(f"scheduling plugin {self._name!r}: {hook}() cannot be used: {said}") from error

    def _service(self, guard: Guard, answer: object) -> Service:
        parts = one_of(answer, PolicyParts)
        order = Continuous() if parts.order is None else GuardedOrder(guard, _playing(parts.order, ("serve",)))
        return Service(GuardedRank(guard, _playing(parts.rank, ("key",))), order, extras=_extras(guard, parts))

    def _extras(self, guard: Guard, answer: object) -> Extras:
        return _extras(guard, one_of(answer, ExtensionParts))


def _of(around: Surroundings) -> Settings:
    return Settings(around.config, around.costs.costs())


def _extras(guard: Guard, parts: PolicyParts | ExtensionParts) -> Extras:
    return Extras(
        limits=tuple(GuardedLimit(guard, role) for role in _each(parts.limits, ("clip",))),
        gates=tuple(GuardedGate(guard, role) for role in _each(parts.gates, ("check",))),
        observers=tuple(GuardedObserver(guard, role) for role in _each(parts.observers, ("begin_step", "admitted"))),
        stops=tuple(GuardedStopRule(guard, role) for role in _each(parts.stops, ("check",))),
    )


def _each(given: Sequence[_T], methods: Sequence[str]) -> list[_T]:
    return [_playing(role, methods) for role in given]


def _playing(role: _T, methods: Sequence[str]) -> _T:
    """``role``, which can be asked all this. Raises ``ContractError`` naming what it lacks."""
    missing = [name for name in methods if not callable(getattr(role, name, None))]
    if missing:
        raise ContractError(f"{role!r} has no method {' and no method '.join(missing)}")
    return role
