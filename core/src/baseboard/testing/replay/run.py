"""The replay: requests come when the trace says, steps take as long as the cost model says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from baseboard.contract.errors import RequestRejected
from baseboard.contract.plan import StepPlan, StepResult
from baseboard.contract.sampling import SamplingParams
from baseboard.discovery import registry_for
from baseboard.kv.group import PoolShape
from baseboard.kv.prefix import NoPrefixIndex, PrefixIndex
from baseboard.request.request import Request, RequestSpec
from baseboard.scheduler.config import SchedulerConfig
from baseboard.scheduler.policy import Policy, check_host_pool, make_kv, make_roles
from baseboard.scheduler.scheduler import Scheduler
from baseboard.testing.replay.costs import StepCosts
from baseboard.testing.replay.trace import TraceRequest

#: What the imagined device samples: no stop id, and no token of any prompt.
_TOKEN: Final = -1
_SAMPLES: Final = 400  # points of the curves


@dataclass(frozen=True, slots=True)
class Cluster:
    """One engine, as it would be configured."""

    num_blocks: int
    block_size: int = 16
    num_host_blocks: int = 0
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    max_model_len: int = 1 << 20
    policy: Policy = field(default_factory=Policy)
    prefix_caching: bool = True
    costs: StepCosts = field(default_factory=StepCosts)


@dataclass(frozen=True, slots=True)
class Life:
    """One request's times, in seconds of the trace."""

    arrived: float
    first_token: float
    finished: float
    num_output: int

    @property
    def ttft(self) -> float:
        """Time to first token."""
        return self.first_token - self.arrived

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None where there is none."""
        return (self.finished - self.first_token) / (self.num_output - 1) if self.num_output > 1 else None


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of the engine at one time."""

    seconds: float
    used_blocks: int
    num_running: int
    num_waiting: int
    num_swapped: int


@dataclass(slots=True)
class ReplayResult:
    lives: list[Life] = field(default_factory=list[Life])
    moments: list[Moment] = field(default_factory=list[Moment])
    refused: list[str] = field(default_factory=list[str])
    seconds: float = 0.0
    num_steps: int = 0
    counters: dict[str, int] = field(default_factory=dict[str, int])


def replay(
    trace: Sequence[TraceRequest], cluster: Cluster, progress: Callable[[int], None] = lambda _finished: None
) -> ReplayResult:
    """Replay ``trace``, which is ordered by time. A request that can never run is refused and reported."""
    return _Replay(trace, cluster, progress).run()


class _Replay:
    def __init__(self, trace: Sequence[TraceRequest], cluster: Cluster, progress: Callable[[int], None]) -> None:
        config = SchedulerConfig(
            max_num_batched_tokens=cluster.max_num_batched_tokens,
            max_num_seqs=cluster.max_num_seqs,
            max_model_len=cluster.max_model_len,
            pool_tokens=cluster.num_blocks * cluster.block_size,
            block_size=cluster.block_size,
        )
        check_host_pool(cluster.policy.preemption, cluster.num_host_blocks)
        registry = registry_for(cluster.policy)
        index = PrefixIndex() if cluster.prefix_caching else NoPrefixIndex()
        kv = make_kv(PoolShape(cluster.num_blocks, cluster.block_size), cluster.num_host_blocks, index)
        self._scheduler = Scheduler(config, kv, make_roles(cluster.policy, config, cluster.costs, registry))
        self._costs = cluster.costs
        self._trace = trace
        self._progress = progress
        self._next = 0
        self._now = 0.0
        self._arrived: dict[str, float] = {}
        self._first: dict[str, float] = {}
        self._every = max((trace[-1].seconds if trace else 0.0) / _SAMPLES, 1e-9)
        self._sampled_until = 0.0
        self.result = ReplayResult()

    def run(self) -> ReplayResult:
        while self._next < len(self._trace) or self._scheduler.num_unfinished:
            self._receive()
            if not self._scheduler.num_unfinished:
                if self._next < len(self._trace):
                    self._now = self._trace[self._next].seconds
                continue
            self._step()
        return self._finish()

    def _receive(self) -> None:
        while self._next < len(self._trace) and self._trace[self._next].seconds <= self._now:
            request = self._trace[self._next]
            self._next += 1
            try:
                self._scheduler.add(self._spec(request))
            except RequestRejected as refusal:
                self.result.refused.append(f"request {request.number}: {refusal}")
            else:
                self._arrived[str(request.number)] = request.seconds

    def _spec(self, request: TraceRequest) -> RequestSpec:
        config = self._scheduler.config
        return RequestSpec(
            id=str(request.number),
            prompt=request.prompt(),
            params=SamplingParams(temperature=0, max_tokens=request.num_output),
            max_total=config.max_total(request.num_prompt, request.num_output),
            stop_ids=frozenset(),
            arrival=request.number,
        )

    def _step(self) -> None:
        plan = self._scheduler.schedule()
        self._now += self._costs.seconds(plan)
        outcome = self._scheduler.commit(_answer(plan))
        for request in outcome.requests:
            if request.num_outputs == 1:
                self._first[request.id] = self._now
        for request in outcome.finished:
            self._end(request)
        self.result.num_steps += 1
        if self._now >= self._sampled_until:
            self._sample()

    def _end(self, request: Request) -> None:
        arrived, first = self._arrived.pop(request.id), self._first.pop(request.id)
        self.result.lives.append(Life(arrived, first, self._now, request.num_outputs))
        self._progress(len(self.result.lives))

    def _sample(self) -> None:
        scheduler = self._scheduler
        pool = scheduler.kv.pool
        self.result.moments.append(
            Moment(
                self._now,
                pool.num_blocks - pool.num_free,
                scheduler.num_running,
                scheduler.num_waiting,
                scheduler.num_swapped,
            )
        )
        self._sampled_until = self._now + self._every

    def _finish(self) -> ReplayResult:
        counted = self._scheduler.stats
        self.result.seconds = self._now
        self.result.counters = {
            "num_requests": len(self.result.lives),
            "num_refused": len(self.result.refused),
            "num_prompt_tokens": counted.num_prompt_tokens,
            "num_generated_tokens": counted.num_generated_tokens,
            "prefix_queries": counted.prefix_queries,
            "prefix_hits": counted.prefix_hits,
            "prefix_evictions": self._scheduler.kv.pool.num_evictions,
            "num_preemptions": counted.num_preemptions,
            "num_swaps_out": counted.num_swaps_out,
            "num_recomputed_tokens": counted.num_recomputed_tokens,
            "num_steps": self.result.num_steps,
        }
        return self.result


def _answer(plan: StepPlan) -> StepResult:
    one, none = (_TOKEN,), ()
    return StepResult(plan.step, tuple([one if samples else none for samples in plan.samples]))
