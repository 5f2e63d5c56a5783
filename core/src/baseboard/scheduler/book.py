"""All live requests: which queue each stands in, and every way from one to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from baseboard.contract.errors import RequestRejected
from baseboard.contract.plan import BlockPair
from baseboard.kv.manager import KVCacheManager, PrefixHit
from baseboard.request.request import Request, RequestSpec
from baseboard.request.status import Event, Status
from baseboard.scheduler.preemption import Preemption, Recompute
from baseboard.scheduler.queue import RankedQueue
from baseboard.scheduler.ranks import Rank
from baseboard.scheduler.stats import SchedulerStats


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

    def __init__(self, kv: KVCacheManager, rank: Rank) -> None:
        self.kv: Final = kv
        self.stats: Final = SchedulerStats()
        self.waiting: Final = RankedQueue()  # WAITING and PREEMPTED
        self.swapped: Final = RankedQueue()
        self.running: Final = RankedQueue()
        self._rank: Final = rank
        self._requests: Final[dict[str, Request]] = {}
        self._reserved: Final[set[str]] = set()  # ids of samples that are still to be forked
        self._queue_of: Final = {
            Status.WAITING: self.waiting,
            Status.PREEMPTED: self.waiting,
            Status.SWAPPED: self.swapped,
            Status.RUNNING: self.running,
        }
        self._retired: list[str] = []
        self._moved_out = MovedOut((), ())
        self._to_wipe: list[int] = []

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, request_id: str) -> Request | None:
        return self._requests.get(request_id)

    def in_use(self, request_id: str) -> bool:
        return request_id in self._requests or request_id in self._reserved

    @property
    def num_places(self) -> int:
        """Places that running requests take, samples still to be forked included."""
        return len(self.running) + sum(request.width - 1 for request in self.running if request.width > 1)

    def open(self, spec: RequestSpec) -> Request:
        """A new request joins the waiting. Raises ``RequestRejected`` for an id that is in use."""
        ids = [sample_id(spec.id, index) for index in range(spec.params.n)]
        for taken in ids:
            if self.in_use(taken):
                raise RequestRejected(f"request id {taken!r} is in use: choose another, or wait until it has finished")
        request = Request(spec, self._rank.key(spec))
        request.width = spec.params.n
        self._reserved.update(ids[1:])
        self._requests[spec.id] = request
        self.kv.open(spec.id, request.tokens, spec.namespace)
        self.waiting.add(request)
        self.stats.num_requests += 1
        return request

    def match(self, request: Request) -> PrefixHit:
        """What the prefix cache has of a request; nothing for one whose prompt positions all need logits."""
        if request.spec.params.prompt_logprobs is not None and not request.num_outputs:
            return PrefixHit((), 0)
        return self.kv.match(request.id, request.tokens)

    def admit(self, request: Request, hit: PrefixHit) -> None:
        """From waiting to running, beginning after the tokens of ``hit``."""
        if request.status is Status.WAITING:
            request.num_cached = hit.num_tokens
            self.stats.num_prompt_tokens += request.num_prompt
            self.stats.prefix_queries += request.num_prompt
            self.stats.prefix_hits += hit.num_tokens
        else:
            self.stats.num_recomputed_tokens += len(request.tokens) - hit.num_tokens
        self.kv.admit(request.id, hit)
        request.computed = hit.num_tokens
        self.waiting.remove(request)
        request.on(Event.ADMIT)
        self.running.add(request)

    def swap_in(self, request: Request) -> tuple[BlockPair, ...] | None:
        """From swapped to running: (host, device) pairs; None, and no change, where there is no room."""
        pairs = self.kv.swap_in(request.id, request.computed + 1)
        if pairs is not None:
            self.swapped.remove(request)
            request.on(Event.SWAP_IN)
            self.running.add(request)
        return pairs

    def preempt(self, request: Request, preemption: Preemption) -> tuple[BlockPair, ...]:
        """From running to waiting or swapped: (device, host) pairs to be moved."""
        self.running.remove(request)
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
            before = self._moved_out
            self._moved_out = MovedOut(before.pairs + pairs, (*before.requests, request))

    def fork(self, parent: Request, spec: RequestSpec, computed: int) -> Request:
        """A copy of ``parent`` that goes its own way under ``spec``.

        Where the parent runs, its blocks of the first ``computed`` tokens are shared.
        """
        child = Request(spec, self._rank.key(spec), parent.tokens)
        child.num_cached = parent.num_cached
        self._reserved.discard(spec.id)
        self._requests[spec.id] = child
        if parent.status is Status.RUNNING:
            self.kv.fork(parent.id, spec.id, computed)
            child.computed = computed
            child.publish_at = parent.publish_at
            # Neither may write into the shared last block in place before the manager was asked.
            child.capacity = computed
            parent.capacity = min(parent.capacity, parent.computed)
            child.on(Event.ADMIT)
        else:
            self.kv.open(spec.id, child.tokens, spec.namespace)
        self._queue_of[child.status].add(child)
        self.stats.num_requests += 1
        return child

    def finish(self, request: Request, event: Event) -> None:
        """End a request in whatever state: its blocks come back at once."""
        self._queue_of[request.status].remove(request)
        self._retire(request)
        request.on(event)
        request.leave_executor()
        request.capacity = 0
        self.kv.close(request.id)
        del self._requests[request.id]
        for index in range(1, request.width):
            self._reserved.discard(sample_id(request.id, index))
        self.stats.num_finished += 1

    def take_retired(self) -> tuple[str, ...]:
        """Rows that the executor may forget, since the last call."""
        retired = tuple(self._retired)
        self._retired = []
        return retired

    def take_moved_out(self) -> MovedOut:
        """What preemptions between steps have to move, since the last call."""
        moved = self._moved_out
        self._moved_out = MovedOut((), ())
        return moved

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix, and have the next plan wipe what nobody holds."""
        self._to_wipe.extend(self.kv.reset_index())

    def take_to_wipe(self) -> tuple[int, ...]:
        """Device blocks to be zeroed before anything is written to them, since the last call."""
        to_wipe = tuple(self._to_wipe)
        self._to_wipe = []
        return to_wipe

    def lose_swapped(self, request: Request) -> None:
        """What lies in the host pool for a swapped request is not to be trusted: let it compute its tokens again."""
        self.swapped.remove(request)
        Recompute().preempt(request, self.kv)
        self.waiting.add(request)

    def check(self) -> None:
        """Raise ``AssertionError`` on any broken invariant."""
        queued = [*self.waiting, *self.swapped, *self.running]
        assert sorted(r.id for r in queued) == sorted(self._requests), "a request is in no queue, or in two"
        for request in queued:
            queue = self._queue_of[request.status]
            assert request in list(queue), f"{request!r} stands in the wrong queue"
            assert 0 <= request.computed <= len(request.tokens) + request.promised
        for queue in (self.waiting, self.swapped, self.running):
            ranks = [request.rank for request in queue]
            assert ranks == sorted(set(ranks)), f"ranks out of order or repeated: {ranks}"
        self.kv.check()

    def _retire(self, request: Request) -> None:
        if request.resident:
            self._retired.append(request.id)
