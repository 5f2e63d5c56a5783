"""Roles of other parties as the planner knows them: views go in, checked answers come out."""

from __future__ import annotations

from math import isnan
from typing import Final

from baseboard.contract.errors import ContractError
from baseboard.contract.plan import BlockPair
from baseboard.kv.manager import KVCacheManager
from baseboard.request.request import RankKey, Request, RequestSpec
from baseboard.request.status import Event
from baseboard.scheduler import gates, orders, preemption
from baseboard.scheduling import roles
from baseboard.scheduling.guard import Guard, one_of, whole
from baseboard.scheduling.turn import GuardedTurn
from baseboard.scheduling.views import RequestView, StepView, spec_view

_ENDS: Final = frozenset({Event.STOP, Event.REACH_LIMIT, Event.REPEAT})


class GuardedRank:
    """Arrival and sample end each key, so that no two are equal whatever the plugin gives."""

    def __init__(self, guard: Guard, role: roles.Rank) -> None:
        self._guard, self._role = guard, role

    def key(self, spec: RequestSpec) -> RankKey:
        mine = self._guard.ask((spec,), "Rank.key", lambda: _orderable(self._role.key(spec_view(spec))), ())
        return (*mine, spec.arrival, spec.sample_index)


class GuardedLimit:
    """Where the plugin fails, the request gets nothing."""

    def __init__(self, guard: Guard, role: roles.Limit) -> None:
        self._guard, self._role = guard, role

    def clip(self, request: Request, want: int, budget: int) -> int:
        if want <= 0:
            return want
        view = RequestView(request)
        return self._guard.ask(
            (request.spec,), "Limit.clip", lambda: whole(self._role.clip(view, want, budget), 0, want), 0
        )


class GuardedGate:
    """Where the plugin fails, the request is passed over."""

    def __init__(self, guard: Guard, role: roles.Gate) -> None:
        self._guard, self._role = guard, role

    def check(self, request: Request, view: gates.StepView) -> gates.Verdict:
        seen, step = RequestView(request), StepView(view)
        return self._guard.ask(
            (request.spec,),
            "Gate.check",
            lambda: one_of(self._role.check(seen, step), gates.Verdict),
            gates.Verdict.PASS_OVER,
        )


class GuardedObserver:
    def __init__(self, guard: Guard, role: roles.Observer) -> None:
        self._guard, self._role = guard, role

    def begin_step(self, view: gates.StepView) -> None:
        self._guard.ask(None, "Observer.begin_step", lambda: self._role.begin_step(StepView(view)), None)

    def admitted(self, request: Request, view: gates.StepView) -> None:
        seen, step = RequestView(request), StepView(view)
        self._guard.ask((request.spec,), "Observer.admitted", lambda: self._role.admitted(seen, step), None)


class GuardedOrder:
    """An order decides for all at once: where it fails, everybody in line ends."""

    def __init__(self, guard: Guard, role: roles.Order) -> None:
        self._guard, self._role = guard, role

    def serve(self, turn: orders.Turn) -> None:
        guarded = GuardedTurn(turn)
        self._guard.ask(None, "Order.serve", lambda: self._role.serve(guarded), None)


class GuardedStopRule:
    def __init__(self, guard: Guard, role: roles.StopRule) -> None:
        self._guard, self._role = guard, role

    def check(self, request: Request) -> Event | None:
        view = RequestView(request)
        return self._guard.ask((request.spec,), "StopRule.check", lambda: _end(self._role.check(view)), None)


class GuardedPreemption:
    """The plugin chooses, the core does it. Where the plugin fails, the victim gives up its blocks and ends."""

    def __init__(self, guard: Guard, role: roles.Preemption) -> None:
        self._guard, self._role = guard, role
        self._ways: Final = {roles.How.RECOMPUTE: preemption.Recompute(), roles.How.SWAP: preemption.Swap()}

    def preempt(self, request: Request, kv: KVCacheManager) -> tuple[BlockPair, ...]:
        view, num_blocks = RequestView(request), len(kv.held(request.id))
        how = self._guard.ask(
            (request.spec,),
            "Preemption.choose",
            lambda: one_of(self._role.choose(view, num_blocks), roles.How),
            roles.How.RECOMPUTE,
        )
        return self._ways[how].preempt(request, kv)


def _orderable(key: object) -> RankKey:
    if not isinstance(key, tuple):
        raise ContractError(f"it gave {key!r}, not a tuple of numbers")
    for number in key:  # pyright: ignore[reportUnknownVariableType]  what is in it is looked at here
        if not isinstance(number, int | float) or isnan(number):
            raise ContractError(f"it gave {key!r}, which is not all numbers that can be ordered")
    return key  # pyright: ignore[reportUnknownVariableType]


def _end(event: object) -> Event | None:
    if event is None or event in _ENDS:
        return event  # pyright: ignore[reportReturnType]  the set holds events only
    raise ContractError(f"it gave {event!r}, not None, STOP, REACH_LIMIT or REPEAT")
