"""All live requests: which queue each stands in, and every way from one to another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from baseboard.contract.errors import RequestRejected
from baseboard.contract.plan import BlockPair
from baseboard.kv.group import PrefixHit
from baseboard.kv.manager import KVCacheManager
from baseboard.kv.media import media_keys
from baseboard.request.request import RankKey, Request, RequestSpec, StatusListener
from baseboard.request.status import Event, Status
from baseboard.scheduler.faults import Fault
from baseboard.scheduler.preemption import Preemption, Recompute
from baseboard.scheduler.queue import RankedQueue, RunningQueue
from baseboard.scheduler.ranks import Rank
from baseboard.scheduler.resources import Resource
from baseboard.scheduler.sources import PrefixSource, Sending
from baseboard.scheduler.stats import SchedulerStats

#: States with keys and values of a request's own computing.
_HOLDS_COMPUTED: Final = frozenset({Status.RUNNING, Status.SWAPPED, Status.WAITING_FOR_STREAMING_INPUT})


def sample_id(request_id: str, index: int) -> str:
    """The id of one of a request's samples; the first has the request's own."""
    return f"{request_id}#{index}" if index else request_id


@dataclass(frozen=True, slots=True)
class MovedOut:
    """Preemptions that go with the next plan: (device, host) pairs, and whose blocks they are."""

    pairs: tuple[BlockPair, ...]
    requests: tuple[Request, ...]


class Book:
    """Owner of requests and queues; each unfinished request is in exactly one, and it matches its status."""

    def __init__(
        self,
        kv: KVCacheManager,
        rank: Rank,
        sources: tuple[PrefixSource, ...] = (),
        resources: tuple[Resource, ...] = (),
        listener: StatusListener | None = None,
    ) -> None:
        self._sources: Final = sources
        self._resources: Final = resources
        self._listener: Final = listener
        self._sending: Final[dict[Request, str]] = {}  # finished, but their blocks are still read
        self.kv: Final = kv
        self.stats: Final = SchedulerStats()
        self.waiting: Final = RankedQueue()  # WAITING and PREEMPTED
        self.swapped: Final = RankedQueue()
        self.loaded: Final = RankedQueue()  # hold blocks with keys and values that came from outside
        self.parked: Final = RankedQueue()  # wait for something outside; nobody looks at them in a step
        self.idle: Final = RankedQueue()  # wait for more of their prompt
        self.running: Final = RunningQueue()
        self._rank: Final = rank
        self._requests: Final[dict[str, Request]] = {}
        self._reserved: Final[dict[str, RankKey]] = {}  # ids and ranks of samples that are still to be forked
        self._queue_of: Final = {
            Status.WAITING: self.waiting,
            Status.WAITING_FOR_GRAMMAR: self.parked,
            Status.WAITING_FOR_REMOTE_KV: self.parked,
            Status.WAITING_FOR_STREAMING_INPUT: self.idle,
            Status.LOADED: self.loaded,
            Status.PREEMPTED: self.waiting,
            Status.SWAPPED: self.swapped,
            Status.RUNNING: self.running,
        }
        self._retired: list[str] = []
        #: what each request that waits for keys and values waits for
        self.sendings: Final[dict[Request, Sending]] = {}
        self._moving: Final[dict[Request, tuple[BlockPair, ...]]] = {}  # swapped out, to go with the next plan
        self._to_wipe: list[int] = []

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, request_id: str) -> Request | None:
        return self._requests.get(request_id)

    def in_use(self, request_id: str) -> bool:
        return request_id in self._requests or request_id in self._reserved

    @property
    def num_places(self) -> int:
        """Places that running requests take, samples still to be forked included, and those that are kept."""
        return self.running.num_places + sum(request.width for request in self.idle_holders)

    @property
    def idle_holders(self) -> Sequence[Request]:
        """Those that hold blocks while they wait for more of their prompt, best rank first."""
        return [request for request in self.idle if request.resident] if len(self.idle) else ()

    @property
    def victim(self) -> Request:
        """Whose blocks are taken next: of those that have nothing to compute, then of those that run, the worst."""
        holders = self.idle_holders
        return holders[-1] if holders else self.running.items[-1]

    def open(self, spec: RequestSpec) -> Request:
        """A new request joins the waiting. Raises ``RequestRejected`` for an id that is in use."""
        ids = [sample_id(spec.id, index) for index in range(spec.params.n)]
        for taken in ids:
            if self.in_use(taken):
                raise RequestRejected(f"request id {taken!r} is in use: choose another, or wait until it has finished")
        try:
            request = Request(spec, self._rank.key(spec))
        except (OverflowError, TypeError) as error:
            raise RequestRejected(f"the prompt holds what is no token id: {error}") from error
        request.listener = self._listener
        request.width = spec.params.n
        for index in range(1, request.width):  # a rank that fails, fails here, where the request can be refused
            self._reserved[ids[index]] = self._rank.key(replace(spec, sample_index=index))
        self._requests[spec.id] = request
        self.kv.open(spec.id, spec.key_namespace, media_keys(spec.media), len(spec.source))
        self.waiting.add(request)
        self.stats.num_requests += 1
        if self._listener is not None:
            self._listener.opened(request)
        return request

    def move(self, request: Request, event: Event) -> None:
        """Change a request's status, and its queue with it."""
        self.sendings.pop(request, None)
        self._queue_of[request.status].remove(request)
        request.on(event)
        self._queue_of[request.status].add(request)

    def match(self, request: Request) -> PrefixHit:
        """What the prefix cache has of a request; nothing for one whose prompt positions all need logits."""
        if request.spec.params.prompt_logprobs is not None and not request.num_outputs:
            return self.kv.no_match()
        # Something has to be left to compute: short of the last token, and of what an open prompt may compute yet.
        hit = self.kv.match(request.id, request.tokens[:-1] if request.input_open else request.tokens)
        for resource in self._resources:
            begin = resource.begin(request, hit.num_tokens)
            if begin < hit.num_tokens:
                hit = self.kv.match(request.id, request.tokens[: begin + 1])
        return hit

    def admit(self, request: Request, hit: PrefixHit, num_outside: int = 0) -> None:
        """From waiting to running, beginning after the tokens of ``hit`` and ``num_outside`` more to be fetched."""
        self._count_admission(request, hit.num_tokens + num_outside)
        self.kv.admit(request.id, hit)
        request.computed = hit.num_tokens + num_outside
        self.move(request, Event.ADMIT)

    def await_remote(self, request: Request, hit: PrefixHit, num_outside: int) -> None:
        """From waiting to parked, with blocks for what is sent from outside."""
        self._count_admission(request, hit.num_tokens + num_outside)
        self.kv.admit(request.id, hit)
        extension = self.kv.extend(request.id, hit.num_tokens, num_outside)
        assert extension is not None, "fits() said there was room"
        request.computed = hit.num_tokens
        self.move(request, Event.AWAIT_REMOTE_KV)

    def give_up_blocks(self, request: Request) -> None:
        """A request that holds blocks while it waits computes all its tokens itself."""
        self.sendings.pop(request, None)
        self._queue_of[request.status].remove(request)
        Recompute().preempt(request, self.kv)
        self.waiting.add(request)

    def enter_anew(self, request: Request) -> None:
        """The executor knows an older state of a request that keeps its blocks: its next row brings the whole."""
        self._retire(request)
        request.leave_executor()
        request.capacity = 0

    def lose_tokens(self, request: Request, num_good: int) -> None:
        """Of a running request only the first ``num_good`` tokens are in the cache: it goes on from there."""
        request.disown()  # what was planned ahead builds on what is lost
        self.enter_anew(request)
        request.computed = num_good
        self.stats.num_recomputed_tokens += len(request.tokens) - num_good

    def _count_admission(self, request: Request, num_cached: int) -> None:
        if not request.started:
            request.started = True
            request.num_cached = num_cached
            self.stats.num_prompt_tokens += request.num_prompt
            self.stats.prefix_queries += request.num_prompt
            self.stats.prefix_hits += num_cached
        else:
            self.stats.num_recomputed_tokens += len(request.tokens) - num_cached

    def swap_in(self, request: Request, count: int) -> tuple[BlockPair, ...] | None:
        """From swapped to running, with room for ``count`` tokens to come: (host, device) pairs.

        None, and no change, where there is no room.
        """
        pairs = self.kv.swap_in(request.id, request.computed + count)
        if pairs is not None:
            self.swapped.remove(request)
            request.on(Event.SWAP_IN)
            self.running.add(request)
        return pairs

    def preempt(self, request: Request, preemption: Preemption) -> tuple[BlockPair, ...]:
        """From running to waiting or swapped: (device, host) pairs to be moved. One that waits for input goes on so."""
        self._queue_of[request.status].remove(request)
        self._retire(request)
        pairs = preemption.preempt(request, self.kv)
        self._queue_of[request.status].add(request)
        request.num_preemptions += 1
        self.stats.num_preemptions += 1
        self.stats.num_swaps_out += bool(pairs)
        return pairs

    def preempt_between_steps(self, request: Request, preemption: Preemption) -> None:
        """The same on somebody's order: what is to be moved goes with the next plan."""
        pairs = self.preempt(request, preemption)
        if pairs:
            self._moving[request] = pairs

    def begin_samples(self, request: Request) -> tuple[RequestSpec, ...]:
        """From here on a request stands for its first sample alone; the specs of the others, to be forked."""
        others = range(1, request.width)
        if request.status is Status.RUNNING:
            self.running.num_places -= len(others)
        request.width = 1
        return tuple(replace(request.spec, id=sample_id(request.id, at), sample_index=at) for at in others)

    def fork(self, parent: Request, spec: RequestSpec, computed: int) -> Request:
        """A copy of ``parent`` that goes its own way under ``spec``.

        Where the parent runs, its blocks of the first ``computed`` tokens are shared; with nothing to share the copy
        waits for its turn.
        """
        reserved = self._reserved.pop(spec.id, None)
        rank = self._rank.key(spec) if reserved is None else reserved
        child = Request(spec, rank, parent.tokens)
        child.set_prompt(parent.num_prompt, parent.max_total)
        child.listener = self._listener
        child.num_cached = parent.num_cached
        child.constraint = parent.constraint.copy() if parent.constraint is not None else None
        self._requests[spec.id] = child
        if self._listener is not None:
            self._listener.opened(child)
        if parent.status is Status.RUNNING and computed:
            self.kv.fork(parent.id, spec.id, computed)
            child.started = True
            child.computed = computed
            child.settle_at = parent.settle_at
            # Neither may write into the shared last block in place before the manager was asked.
            child.capacity = computed
            parent.capacity = min(parent.capacity, parent.computed)
            child.on(Event.ADMIT)
        else:
            self.kv.open(spec.id, spec.key_namespace, media_keys(spec.media), len(spec.source))
        self._queue_of[child.status].add(child)
        self.stats.num_requests += 1
        return child

    def finish(self, request: Request, event: Event) -> None:
        """End a request in whatever state: its blocks come back at once."""
        self._queue_of[request.status].remove(request)
        self._retire(request)
        self._moving.pop(request, None)
        self.sendings.pop(request, None)
        request.on(event)
        request.leave_executor()
        request.capacity = 0
        self._close_blocks(request)
        del self._requests[request.id]
        for index in range(1, request.width):
            self._reserved.pop(sample_id(request.id, index), None)
        self.stats.num_finished += 1

    def _close_blocks(self, request: Request) -> None:
        self.call_off(request)
        for source in self._sources:
            request.kv_transfer = source.handover(request) or request.kv_transfer
        if any(source.keeps(request) for source in self._sources):
            self._sending[request] = f"{request.id} (sending {len(self._sending)})"
            self.kv.rename(request.id, self._sending[request])
        else:
            self.kv.close(request.id)

    def sent(self, request: Request) -> None:
        """Nobody reads the blocks of this finished request any more."""
        owner = self._sending.pop(request, None)
        if owner is not None:
            self.kv.close(owner)

    def take_retired(self) -> tuple[str, ...]:
        """Rows that the executor may forget, since the last call."""
        retired = tuple(self._retired)
        self._retired = []
        return retired

    def take_moved_out(self) -> MovedOut:
        """What preemptions between steps have to move, since the last call."""
        moved = MovedOut(tuple(chain.from_iterable(self._moving.values())), tuple(self._moving))
        self._moving.clear()
        return moved

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix, and have the next plan wipe what nobody holds."""
        for resource in self._resources:
            resource.reset()
        moving = self.moving_out()
        self._to_wipe.extend(block for block in self.kv.reset_index() if block not in moving)

    def moving_out(self) -> frozenset[int]:
        """Free blocks whose content a live request still needs: the next plan moves it to the host."""
        return frozenset(pair.source for pairs in self._moving.values() for pair in pairs)

    def wipe_again(self, blocks: Iterable[int]) -> None:
        """The plan that was to wipe these came to nothing; what has found a new use meanwhile is left alone."""
        kv = self.kv
        self._to_wipe.extend(b for b in blocks if not kv.pool.refs(b) and not kv.index.holds(b))

    def take_to_wipe(self) -> tuple[int, ...]:
        """Device blocks to be zeroed before anything is written to them, since the last call."""
        to_wipe = tuple(self._to_wipe)
        self._to_wipe = []
        return to_wipe

    def distrust(self, request: Request) -> None:
        """Nothing computed for a request is to be trusted: let it compute its tokens again."""
        request.disown()
        if request.status in _HOLDS_COMPUTED:
            self._queue_of[request.status].remove(request)
            self._retire(request)
            self._moving.pop(request, None)
            Recompute().preempt(request, self.kv)
            self._queue_of[request.status].add(request)

    def call_off(self, request: Request) -> None:
        """Nothing is sent for a request any more."""
        for source in self._sources:
            source.cancel(request)

    def start_over(self, request: Request) -> None:
        """A request that has begun in any way computes all its tokens anew; nothing that is under way counts."""
        if request.status in {Status.LOADED, Status.WAITING_FOR_REMOTE_KV}:
            request.disown()
            self.give_up_blocks(request)
        else:
            self.distrust(request)

    def check(self) -> None:
        """Raise ``AssertionError`` on any broken invariant."""
        queued = [*self.waiting, *self.parked, *self.idle, *self.loaded, *self.swapped, *self.running]
        assert sorted(r.id for r in queued) == sorted(self._requests), "a request is in no queue, or in two"
        for request in queued:
            queue = self._queue_of[request.status]
            assert request in list(queue), f"{request!r} stands in the wrong queue"
            assert 0 <= request.computed <= len(request.tokens) + request.promised + request.verifying
            room = self.kv.room(request.id)
            assert request.capacity <= room, f"{request!r} counts on room for {request.capacity} tokens and has {room}"
        assert self.running.num_places == sum(request.width for request in self.running), "places miscounted"
        assert set(self.running.adapters) == {r.spec.adapter for r in self.running} - {None}, "adapters miscounted"
        for queue in (self.waiting, self.parked, self.idle, self.loaded, self.swapped, self.running):
            ranks = [request.rank for request in queue]
            assert ranks == sorted(set(ranks)), f"ranks out of order or repeated: {ranks}"
        for resource in self._resources:
            resource.check_books()
        self.kv.check()

    def touched_by(self, fault: Fault) -> tuple[Request, ...]:
        """The live requests among those that a role failed on, or everybody whom the next step may be for."""
        if fault.specs is None:
            return (*self.running, *self.swapped, *self.loaded, *self.waiting)
        named = ((self._requests.get(spec.id), spec.arrival) for spec in fault.specs)
        return tuple(request for request, arrival in named if request is not None and request.spec.arrival == arrival)

    def _retire(self, request: Request) -> None:
        for resource in self._resources:
            resource.give_back(request)
        if request.resident:
            self._retired.append(request.id)
