"""Gate: holds a request back, though there would be room."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from baseboard.request.request import Request
from baseboard.request.status import Status


class Verdict(Enum):
    ADMIT = "admit"
    PASS_OVER = "pass_over"  #: not this one; those behind it may go
    CLOSE = "close"  #: nobody else in this step


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the world tells the scheduler before a step."""

    now: float = 0.0  #: seconds of the injected clock
    throttled: bool = False  #: admit no new prefill in this step
    budget: int | None = None  #: fewer tokens than configured; 0 gives nobody anything


class StepView(Protocol):
    """What a gate may see of the step that is being made."""

    @property
    def inputs(self) -> StepInputs: ...
    @property
    def num_running(self) -> int:
        """Places taken, samples still to be forked included."""
        ...

    @property
    def running(self) -> Iterable[Request]:
        """Those that run, and those that keep their place while they wait for more of their prompt."""
        ...

    @property
    def adapters(self) -> Collection[str]:
        """Distinct LoRA adapters of these."""
        ...

    @property
    def waiting(self) -> Iterable[Request]: ...


class Gate(Protocol):
    def check(self, request: Request, view: StepView) -> Verdict: ...


@dataclass(frozen=True, slots=True)
class MaxRunning:
    """At most this many sequences run; a request with ``n`` samples needs ``n`` places at once."""

    max_running: int

    def check(self, request: Request, view: StepView) -> Verdict:
        return Verdict.ADMIT if view.num_running + request.width <= self.max_running else Verdict.CLOSE


class Throttle:
    """In a step that is asked to, no prefill is begun; whatever runs goes on."""

    def check(self, request: Request, view: StepView) -> Verdict:
        return Verdict.CLOSE if view.inputs.throttled and request.status is not Status.SWAPPED else Verdict.ADMIT


class Hold(str, Enum):
    """How much stands still while the engine is paused."""

    NONE = "none"
    NEW = "new"  #: nothing that has never started is admitted; what was preempted comes back
    ALL = "all"  #: nobody is given any token


class Pause:
    """While new requests are held, those that have never started wait."""

    def __init__(self) -> None:
        self.hold = Hold.NONE

    def check(self, request: Request, view: StepView) -> Verdict:
        del view
        held = self.hold is not Hold.NONE and request.status is Status.WAITING
        return Verdict.PASS_OVER if held else Verdict.ADMIT


class DelayFactor:
    """Prefill waits until the oldest waiting request has waited ``factor`` times as long as the last prompt step took.

    A step that begins few prompts delays every running request nearly as long as one that begins many. Where nothing
    runs nobody waits. Owner of the two times it keeps: when the last step that began a prompt was planned, and how
    long that step took until the next one.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._prompt_step_at: float | None = None
        self._last_seconds = 0.0
        self._oldest = 0.0

    def begin_step(self, view: StepView) -> None:
        if self._prompt_step_at is not None:
            self._last_seconds = view.inputs.now - self._prompt_step_at
            self._prompt_step_at = None
        self._oldest = min((each.spec.arrived_at for each in view.waiting), default=view.inputs.now)

    def admitted(self, request: Request, view: StepView) -> None:
        del request
        self._prompt_step_at = view.inputs.now

    def check(self, request: Request, view: StepView) -> Verdict:
        # Those that wait for more of their prompt keep their places, and are not delayed by anything.
        num_busy = view.num_running - sum(each.width for each in view.running if each.idle)
        if request.status is Status.SWAPPED or not num_busy:
            return Verdict.ADMIT
        waited = view.inputs.now - self._oldest
        return Verdict.ADMIT if waited >= self._factor * self._last_seconds else Verdict.CLOSE


class MaxAdapters:
    """At most ``max_adapters`` distinct adapters run at once; requests for others keep their place.

    No starvation: when the best-ranked request held back has been so for ``patience`` steps, no request behind it is
    admitted that wants an adapter other than its own. Then an adapter comes free as soon as the requests that run by
    then on one of them have ended: so a request waits at most ``patience`` steps and the longest request's steps.
    """

    def __init__(self, max_adapters: int, patience: int = 16) -> None:
        self._max = max_adapters
        self._patience = patience
        self._step = 0
        self._held: Request | None = None
        self._held_since = 0
        self._seen_held = False

    def begin_step(self, view: StepView) -> None:
        del view
        self._step += 1
        if not self._seen_held:
            self._held = None
        self._seen_held = False

    def admitted(self, request: Request, view: StepView) -> None:
        del view
        if request is self._held:
            self._held = None

    def check(self, request: Request, view: StepView) -> Verdict:
        adapter = request.spec.adapter
        if adapter is None:
            return Verdict.ADMIT
        in_use = view.adapters
        if adapter in in_use or len(in_use) < self._max:
            return Verdict.PASS_OVER if self._must_yield(request) else Verdict.ADMIT
        if not self._seen_held:
            self._seen_held = True
            if self._held is not request:
                self._held, self._held_since = request, self._step
        return Verdict.PASS_OVER

    def _must_yield(self, request: Request) -> bool:
        held = self._held
        if held is None or held is request or held.finished or self._step - self._held_since < self._patience:
            return False
        return request.rank > held.rank and request.spec.adapter != held.spec.adapter
