"""The scheduler as its owner sees it: requests in, plans out, results in."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final

from baseboard.contract.errors import RequestRejected
from baseboard.contract.plan import StepPlan, StepResult
from baseboard.kv.manager import KVCacheManager
from baseboard.request.request import Request, RequestSpec
from baseboard.request.status import Event, Status
from baseboard.scheduler.book import Book
from baseboard.scheduler.commit import Committer, Outcome
from baseboard.scheduler.config import SchedulerConfig
from baseboard.scheduler.inflight import InFlight
from baseboard.scheduler.planner import Planner, Roles
from baseboard.scheduler.preemption import Preemption, Recompute
from baseboard.scheduler.stats import SchedulerStats


class Scheduler:
    """Pure bookkeeping: no device, no clock. Plans may be made ahead of results; results come in plan order."""

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager, roles: Roles) -> None:
        self.config: Final = config
        self.kv: Final = kv
        self._book: Final = Book(kv, roles.rank)
        self._planner: Final = Planner(self._book, roles, config.max_num_batched_tokens)
        self._committer: Final = Committer(self._book)
        self._flights: Final[deque[InFlight]] = deque()
        self._step = 0

    @property
    def stats(self) -> SchedulerStats:
        return self._book.stats

    @property
    def num_unfinished(self) -> int:
        return len(self._book)

    @property
    def num_running(self) -> int:
        return len(self._book.running)

    @property
    def num_waiting(self) -> int:
        return len(self._book.waiting)

    @property
    def num_swapped(self) -> int:
        return len(self._book.swapped)

    @property
    def num_in_flight(self) -> int:
        """Steps planned and not committed."""
        return len(self._flights)

    def add(self, spec: RequestSpec) -> Request:
        """Queue a request. Raises ``RequestRejected`` for one that can never run, or whose id is in use."""
        self.config.check_prompt(len(spec.prompt), spec.params.n)
        return self._book.open(spec)

    def schedule(self) -> StepPlan:
        """The next step. It may be empty of rows, and still retire rows or move blocks: execute it all the same."""
        draft = self._planner.plan()
        plan = draft.freeze(self._step, self._book.take_retired(), self._book.take_to_wipe())
        self._step += 1
        requests = tuple(draft.requests)
        epochs = tuple([request.epoch for request in requests])
        self._flights.append(InFlight(plan, requests, epochs, tuple(draft.swapped_out)))
        self.stats.num_steps += 1
        self.stats.num_scheduled_tokens += self.config.max_num_batched_tokens - draft.budget
        return plan

    def commit(self, result: StepResult) -> Outcome:
        """Take in the result of the oldest plan that has none yet."""
        return self._committer.commit(self._flights.popleft(), result)

    def fail_step(self, reason: str) -> list[Request]:
        """The oldest plan came to nothing: end its requests with an error and return them; others go on."""
        return self._committer.fail(self._flights.popleft(), reason)

    def finish(self, request: Request, event: Event) -> None:
        """End a request from outside (abort, a stop text, a failure). A finished one is left alone."""
        if not request.finished:
            self._book.finish(request, event)

    def preempt(self, request: Request, preemption: Preemption) -> None:
        """Take a running request's blocks between two steps; one that does not run is left alone."""
        if request.status is Status.RUNNING:
            self._book.preempt_between_steps(request, preemption)

    def fork(self, parent: Request, child_id: str, arrival: int) -> Request:
        """A new request that begins with all of ``parent``'s tokens and shares its blocks.

        Raises ``RequestRejected`` for a parent that has finished or has not sampled yet, and for an id in use.
        """
        if parent.finished or not parent.num_outputs:
            raise RequestRejected(f"{parent.id!r} is {parent.status.value}: only a request with output can be forked")
        if self._book.in_use(child_id):
            raise RequestRejected(f"request id {child_id!r} is in use: choose another")
        spec = replace(parent.spec, id=child_id, arrival=arrival)
        return self._book.fork(parent, spec, min(parent.computed, len(parent.tokens) - 1))

    def reset_prefix_cache(self) -> None:
        """No later request hits what is cached now, and the device forgets it; running requests keep their blocks."""
        self._book.reset_prefix_cache()

    def preempt_all(self) -> None:
        """Every running request computes its tokens anew, for one after the weights have changed, say."""
        for request in list(self._book.running):
            self._book.preempt_between_steps(request, Recompute())

    def check(self) -> None:
        """Raise ``AssertionError`` on any broken invariant."""
        self._book.check()
