"""The scheduler as its owner sees it: requests in, plans out, results in."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from baseboard.contract.errors import RequestRejected
from baseboard.contract.plan import StepPlan, StepResult
from baseboard.kv.events import KVEvent, RecordedIndex
from baseboard.kv.manager import KVCacheManager
from baseboard.request.admission import check_terms
from baseboard.request.constraint import TokenConstraint
from baseboard.request.request import Request, RequestSpec, Task
from baseboard.request.status import Event, Status
from baseboard.scheduler.blocks import common_beginning, full_blocks, written_blocks
from baseboard.scheduler.book import Book
from baseboard.scheduler.commit import Committer, Outcome
from baseboard.scheduler.config import SchedulerConfig
from baseboard.scheduler.deadline import Deadline
from baseboard.scheduler.gates import Hold, Pause, StepInputs
from baseboard.scheduler.inflight import InFlight
from baseboard.scheduler.planner import Planner, Roles
from baseboard.scheduler.preemption import Preemption
from baseboard.scheduler.snapshot import Snapshot, take_snapshot
from baseboard.scheduler.sources import PrefixSource
from baseboard.scheduler.stats import SchedulerStats, StepTimer
from baseboard.scheduler.streaming import StreamingInput

_NOTHING_NEW: Final = StepInputs()


class Scheduler:
    """Pure bookkeeping: no device, no clock. Plans may be made ahead of results; results come in plan order."""

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager, roles: Roles) -> None:
        self.config: Final = config
        self.kv: Final = kv
        self._deadlines: Final = _deadlines(roles.sources, config.load_timeout)
        self._sources: Final = self._deadlines or roles.sources
        roles = replace(roles, sources=self._sources)
        self._book: Final = Book(kv, roles.rank, roles.sources, roles.resources, roles.recorder)
        self._faults: Final = roles.faults
        self._faulty: list[Request] = []  # ended for a role's failure, to be told with the next result
        self._recorder: Final = roles.recorder
        self._resources: Final = roles.resources
        self._streaming: Final = StreamingInput(self._book, config)
        self._timer: Final = StepTimer(self._book.stats)
        self._common_prefix: Final = roles.common_prefix
        self._pause: Final = Pause()
        roles = replace(roles, gates=(*roles.gates, self._pause))
        self._planner: Final = Planner(self._book, roles, config.scheduled_tokens)
        self._committer: Final = Committer(self._book, roles.stops, roles.resources)
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
    def running(self) -> Sequence[Request]:
        """Best rank first."""
        return tuple(self._book.running)

    @property
    def num_waiting(self) -> int:
        return len(self._book.waiting)

    @property
    def num_swapped(self) -> int:
        return len(self._book.swapped)

    @property
    def num_parked(self) -> int:
        """Requests that wait for something outside: a grammar, keys and values, more of their prompt."""
        return len(self._book.parked) + len(self._book.idle)

    @property
    def num_in_flight(self) -> int:
        """Steps planned and not committed."""
        return len(self._flights)

    @property
    def moving_out(self) -> frozenset[int]:
        """Device blocks that are free, but whose content the next plan moves to the host first."""
        return self._book.moving_out()

    def add(self, spec: RequestSpec) -> Request:
        """Queue a request. Raises ``RequestRejected`` for one that can never run, or whose id is in use.

        One that a third party's rank fails on has ended when this returns.
        """
        check_terms(spec.priority, spec.tenant)
        self.config.check_adapter(spec.adapter)
        self.config_beside(len(spec.source)).check_prompt(len(spec.prompt), spec.params.n)
        if spec.media and not self._resources:
            raise RequestRejected(
                f"the prompt has {len(spec.media)} inputs for an encoder, but there is none; leave them out"
            )
        if spec.task is Task.POOL and spec.params.n > 1:
            raise RequestRejected(f"n={spec.params.n} samples of a pooled value would all be the same: leave n at 1")
        for resource in self._resources:
            resource.check(spec)
        return self._settled(self._book.open(spec))

    def config_beside(self, num_source: int) -> SchedulerConfig:
        """The limits of a request whose source of ``num_source`` tokens takes blocks of the pool until it ends.

        Raises ``RequestRejected`` where it leaves none.
        """
        if not num_source:
            return self.config
        room = self.kv.longest_beside(num_source)
        if room < 1:
            raise RequestRejected(
                f"the source has {num_source} tokens, but the whole KV pool of {self.kv.pool.num_blocks} blocks "
                f"of {self.kv.block_size} has no room for a prompt beside it; shorten it or raise num_kv_blocks"
            )
        return replace(self.config, pool_tokens=room)

    def open_input(self, request: Request) -> None:
        """More of the prompt of a request that was just added is to come.

        It computes what it has and then waits, with its place and its blocks; it samples when the prompt is whole.
        Raises ``RequestRejected``, and ends the request, where the prompt has inputs for an encoder or a source.
        """
        self._streaming.open(request)

    def add_input(self, request: Request, tokens: Sequence[int]) -> None:
        """Append to an open prompt. Raises ``RequestRejected``, and changes nothing, for what can never run."""
        self._streaming.add(request, tokens)

    def end_input(self, request: Request) -> None:
        """The prompt is whole. One that is already, or has finished, is left alone."""
        self._streaming.end(request)

    def await_grammar(self, request: Request) -> None:
        """A request that was just added may not start before :meth:`grammar_ready`; it takes no place meanwhile."""
        if not request.finished:
            self._book.move(request, Event.AWAIT_GRAMMAR)

    def grammar_ready(self, request: Request, constraint: TokenConstraint) -> None:
        """The request's grammar is compiled. One that has ended meanwhile is left alone."""
        if request.status is Status.WAITING_FOR_GRAMMAR:
            request.constraint = constraint
            self._book.move(request, Event.GRAMMAR_READY)
            self._streaming.settle(request)

    def schedule(self, inputs: StepInputs = _NOTHING_NEW) -> StepPlan:
        """The next step. It may be empty of rows, and still retire rows or move blocks: execute it all the same."""
        if self._pause.hold is Hold.ALL:
            inputs = replace(inputs, budget=0)
        if self._sources:
            self._hear(inputs.now)
        draft = self._planner.plan(inputs)
        plan = draft.freeze(self._step, self._book.take_retired(), self._book.take_to_wipe())
        if self._common_prefix is not None:
            plan = self._common_prefix.report(plan)
        self._timer.planned(inputs.now, len(plan.ids))
        self.kv.pool.planned(self._step)
        self._step += 1
        requests = tuple(draft.requests)
        epochs = tuple([request.epoch for request in requests])
        self._flights.append(InFlight(plan, requests, epochs, tuple(draft.swapped_out), tuple(draft.sendings)))
        self.stats.num_steps += 1
        self.stats.num_scheduled_tokens += plan.num_tokens
        if self._faults:
            self._end_faulty()
        return plan

    def commit(self, result: StepResult) -> Outcome:
        """Take in the result of the oldest plan that has none yet.

        Requests that ended because a third party's role failed, since the last result, are among the finished.
        """
        flight = self._flights.popleft()
        self.kv.pool.landed(flight.plan.step)
        outcome = self._committer.commit(flight, result, self._flights)
        flight.begin_sendings(self._book.sendings)
        if self._faults:
            self._end_faulty()
        if self._faulty:
            outcome.finished.extend(self._take_faulty())
        if self._recorder is not None:
            self._recorder.took_in()
        return outcome

    def fail_step(self, reason: str) -> list[Request]:
        """The oldest plan came to nothing: end its requests with an error and return them; others go on."""
        flight = self._flights.popleft()
        self.kv.pool.landed(flight.plan.step)
        failed = self._committer.fail(flight, reason, self._flights)
        flight.begin_sendings(self._book.sendings)
        if self._faults:
            self._end_faulty()
        return [*failed, *self._take_faulty()]

    def remote_kv(self, request: Request, num_good: int) -> None:
        """What a source was sending has landed, ``num_good`` tokens of it; the rest, if any, is computed here.

        A request that has ended meanwhile is left alone.
        """
        if request.status is Status.WAITING_FOR_REMOTE_KV:
            request.computed += num_good
            if request.computed:
                self._book.move(request, Event.REMOTE_KV_LANDED)
            else:
                request.let_down = True  # or it would be promised the same again, for ever
                self._book.give_up_blocks(request)

    def sent(self, request: Request) -> None:
        """A source has read all it wanted of a finished request: its blocks come back now."""
        self._book.sent(request)

    def finish(self, request: Request, event: Event) -> None:
        """End a request from outside (abort, a stop text, a failure). A finished one is left alone."""
        if not request.finished:
            self._book.finish(request, event)

    def give_up(self, request: Request) -> None:
        """End a request that has not begun, as ``ignored``: its time is over, say. One that has is left alone."""
        if not request.finished and not request.started:
            self._book.finish(request, Event.IGNORE)

    def preempt(self, request: Request, preemption: Preemption) -> None:
        """Take a request's blocks between two steps; one that neither runs nor waits for input is left alone."""
        if request.status is Status.RUNNING or request in self._book.idle_holders:
            self._book.preempt_between_steps(request, preemption)

    def fork(self, parent: Request, child_id: str, arrival: int) -> Request:
        """A new request that begins with all of ``parent``'s tokens and shares its blocks.

        It shares none, and waits, where every place is taken or the parent itself has only begun to come back.
        Raises ``RequestRejected`` for a parent that has finished or has not sampled yet, and for an id in use.
        """
        if parent.finished or not parent.num_outputs:
            raise RequestRejected(f"{parent.id!r} is {parent.status.value}: only a request with output can be forked")
        if self._book.in_use(child_id):
            raise RequestRejected(f"request id {child_id!r} is in use: choose another")
        spec = replace(parent.spec, id=child_id, arrival=arrival)
        free_place = self._book.num_places < self.config.max_running
        shared = self._shareable(parent) if free_place else 0
        return self._settled(self._book.fork(parent, spec, shared))

    def pause(self, hold: Hold) -> None:
        """Hold back new requests or everything, or (``NONE``) go on. Requests keep their blocks and places."""
        self._pause.hold = hold

    def reset_prefix_cache(self) -> None:
        """No later request hits what is cached now, and the device forgets it; running requests keep their blocks."""
        self._book.reset_prefix_cache()

    def preempt_all(self) -> None:
        """Every request that has begun computes its tokens anew: after the weights have changed, say."""
        book = self._book
        awaiting = [request for request in book.parked if request.status is Status.WAITING_FOR_REMOTE_KV]
        for request in awaiting:
            book.call_off(request)
        if self._faults:
            self._end_faulty()
        for request in (*book.running, *book.swapped, *book.loaded, *book.idle, *awaiting):
            if not request.finished:
                book.start_over(request)

    def _hear(self, now: float) -> None:
        """Take in what has come from outside, and what has not in spite of all patience."""
        for source in self._sources:
            for landed in source.landed():
                self.remote_kv(landed.request, landed.num_good)
            for request in source.read_out():
                self.sent(request)
        late = [request for deadline in self._deadlines for request in deadline.overdue(now)]
        if self._faults:  # a source that could not be called off may still write: its request ends, its blocks are kept
            self._end_faulty()
        for request in late:
            self.remote_kv(request, 0)

    def _end_faulty(self) -> None:
        """End what the failures of third parties' roles have touched; nothing else is changed by them."""
        for fault in self._faults.take():
            self.stats.num_policy_faults += 1
            for request in self._book.touched_by(fault):
                request.error = fault.reason
                self._book.finish(request, Event.FAIL)
                self._faulty.append(request)

    def _settled(self, request: Request) -> Request:
        if self._faults:
            self._end_faulty()
        return request

    def _take_faulty(self) -> list[Request]:
        taken, self._faulty = self._faulty, []
        return taken

    def _shareable(self, parent: Request) -> int:
        """Tokens whose blocks a child may share, beside which no step under way writes where it may come too late."""
        landed = min(self._landed(parent), len(parent.tokens) - 1)
        if not self._flights or not self.kv.pool.writes_come_late:
            return landed
        whole = landed - landed % self.kv.block_size
        return whole if self.kv.covers(parent.id, whole) else 0

    def _landed(self, request: Request) -> int:
        """Tokens of a request that are in the cache, whatever becomes of the steps under way."""
        before = [flight.untouched(request, self.kv.block_size) for flight in self._flights]
        landed = min(before, default=request.computed)
        return landed if self.kv.covers(request.id, landed) else 0

    def take_kv_events(self) -> tuple[KVEvent, ...]:
        """How the prefix index has changed since the last call; nothing where that is no ``RecordedIndex``."""
        return self.kv.index.take() if isinstance(self.kv.index, RecordedIndex) else ()

    def written_blocks(self, plan: StepPlan) -> Mapping[str, tuple[int, ...]]:
        """By row, the blocks that a plan just made writes to."""
        return written_blocks(plan, self.kv)

    def computed_blocks(self, request: Request) -> tuple[int, ...]:
        """Leading blocks that are full and stay as they are, whatever becomes of the steps under way."""
        return () if request.finished else full_blocks(self.kv, request.id, self._landed(request))

    def common_blocks(self, requests: Sequence[Request]) -> tuple[int, ...]:
        """Leading computed blocks that all of them hold: what the samples of a prompt share, say."""
        return common_beginning([self.computed_blocks(request) for request in requests])

    def snapshot(self) -> Snapshot:
        """Gauges of now and all counters, at one moment."""
        return take_snapshot(self._book, self.num_in_flight)

    def check(self) -> None:
        """Raise ``AssertionError`` on any broken invariant."""
        self._book.check()


def _deadlines(sources: Sequence[PrefixSource], seconds: float | None) -> tuple[Deadline, ...]:
    return () if seconds is None else tuple(Deadline(source, seconds) for source in sources)
