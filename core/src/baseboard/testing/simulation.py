"""The scheduler and KV manager at work on a simulated device: pure Python, exact, and merciless to mistakes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from baseboard.contract.errors import BaseboardError, Unsupported
from baseboard.contract.plan import PendingStep, StepPlan
from baseboard.contract.sampling import SamplingParams
from baseboard.request.request import Request, RequestSpec
from baseboard.request.status import Event, FinishReason, Status
from baseboard.scheduler.book import sample_id
from baseboard.scheduler.config import SchedulerConfig
from baseboard.scheduler.policy import Policy, make_kv, make_preemption, make_roles
from baseboard.scheduler.preemption import Costs
from baseboard.scheduler.scheduler import Scheduler
from baseboard.testing.device import Facts, Nastiness, SimulatedDevice
from baseboard.testing.memory import SimulatedMemory
from baseboard.testing.model import Draw, Slot, namespace_number, next_token


@dataclass(frozen=True, slots=True)
class FixedCosts:
    """A machine on which computing a token takes as long as moving a block one way."""

    def costs(self) -> Costs:
        return Costs(seconds_per_token=1e-4, seconds_per_block=1e-4)


@dataclass(frozen=True, slots=True)
class SimulationStats:
    """Counters, also by subscript."""

    tracked_requests: int
    num_preemptions: int
    num_swaps_out: int
    num_recomputed_tokens: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_scheduled_tokens: int
    prefix_queries: int
    prefix_hits: int
    evictions: int
    metadata_mismatches: int
    stale_results: int

    def __getitem__(self, name: str) -> int:
        return getattr(self, name)


class Handle:
    """One request, or one of its samples, as the caller sees it."""

    def __init__(self, simulation: Simulation, request_id: str, samples: Sequence[Handle] | None = None) -> None:
        self.id: Final = request_id
        self.samples: Final[list[Handle]] = list(samples) if samples is not None else [self]
        self._simulation = simulation

    @property
    def request(self) -> Request:
        return self._simulation.request_of(self.id)

    @property
    def tokens(self) -> list[int]:
        """Outputs so far."""
        return self.request.outputs

    @property
    def status(self) -> Status:
        return self.request.status

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.request.finish_reason

    @property
    def error(self) -> str | None:
        return self.request.error

    @property
    def num_computed_tokens(self) -> int:
        return self.request.computed

    @property
    def num_cached_tokens(self) -> int:
        return self.request.num_cached

    @property
    def num_preemptions(self) -> int:
        return self.request.num_preemptions

    @property
    def blocks(self) -> list[int]:
        """Device blocks held."""
        return self._simulation.blocks_of(self.id)

    @property
    def num_in_flight(self) -> int:
        """Steps under way that hold a row of it."""
        return self._simulation.in_flight_of(self.id)

    def __repr__(self) -> str:
        return f"<Handle {self.request!r}>"


@dataclass(frozen=True, slots=True)
class _Flight:
    plan: StepPlan
    pending: PendingStep


class Simulation:
    """See the design's section 5: scheduler + KV manager + simulated device. ``num_blocks`` excludes the null block."""

    def __init__(  # noqa: PLR0913 - the public surface, fixed by the design
        self,
        num_blocks: int = 64,
        block_size: int = 16,
        *,
        num_host_blocks: int = 0,
        max_num_batched_tokens: int = 2048,
        max_num_seqs: int = 64,
        max_num_active_seqs: int | None = None,
        max_model_len: int = 4096,
        policy: str = "fcfs",
        preemption: str = "auto",
        prefix_caching: bool = True,
        chunked_prefill: bool = True,
        long_prefill_token_threshold: int = 0,
        pipeline_depth: int = 0,
        seed: int = 0,
        reverse_rows: bool = False,
        copy_latency: int = 0,
        late_metadata: bool = False,
        **later: Any,
    ) -> None:
        _refuse_later("Simulation", later, _LATER_ARGUMENTS)
        self._costs: Final = FixedCosts()
        self._depth: Final = pipeline_depth
        self._arrivals = 0
        self.seed: Final = seed
        config = SchedulerConfig(
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            pool_tokens=num_blocks * block_size,
            chunked_prefill=chunked_prefill,
        )
        names = Policy(policy, preemption, long_prefill_token_threshold, max_num_active_seqs)
        kv = make_kv(num_blocks, block_size, num_host_blocks, prefix_caching)
        self.scheduler: Final = Scheduler(config, kv, make_roles(names, config, self._costs))
        memory = SimulatedMemory(num_blocks, num_host_blocks, block_size, copy_latency)
        self.device: Final = SimulatedDevice(memory, Nastiness(reverse_rows, late_metadata))
        self._requests: Final[dict[str, Request]] = {}
        self._flights: Final[deque[_Flight]] = deque()

    # --- requests ---------------------------------------------------------------------------------------------

    def submit(  # noqa: PLR0913 - the public surface, fixed by the design
        self,
        prompt: Sequence[int],
        max_tokens: int = 8,
        request_id: str | None = None,
        *,
        priority: int = 0,
        salt: str | None = None,
        stop_token_ids: Sequence[int] = (),
        n: int = 1,
        seed: int | None = None,
        **later: Any,
    ) -> Handle:
        """Raises ``RequestRejected`` for a request that can never run."""
        _refuse_later("submit", later, _LATER_SUBMIT)
        params = SamplingParams(
            n=n,
            max_tokens=max_tokens,
            stop_token_ids=tuple(stop_token_ids),
            seed=seed,
            temperature=0.0 if seed is None else 1.0,
        )
        spec = RequestSpec(
            id=request_id if request_id is not None else f"r{self._arrivals}",
            prompt=tuple(prompt),
            params=params,
            max_total=self.scheduler.config.max_total(len(prompt), max_tokens),
            stop_ids=frozenset(stop_token_ids),
            priority=priority,
            arrival=self._arrivals,
            namespace=(salt or "").encode(),
        )
        request = self.scheduler.add(spec)
        self._arrivals += 1
        self._requests[spec.id] = request
        ids = [sample_id(spec.id, index) for index in range(n)]
        for each in ids:
            self.device.facts[each] = Facts(namespace_number(spec.namespace))
        handle = Handle(self, spec.id)
        handle.samples.extend(Handle(self, each) for each in ids[1:])
        return handle

    def script(self, handle: Handle, tokens: Sequence[int]) -> None:
        """Force the outputs of ``handle``, from its output 0; what lies beyond is sampled as usual."""
        self.device.facts[handle.id].script = tuple(tokens)

    def abort(self, handle: Handle) -> None:
        """End a request and all its samples, in whatever state; a finished one is left alone."""
        for sample in handle.samples:
            if sample.id in self._requests:
                self.scheduler.finish(self._requests[sample.id], Event.ABORT)

    def preempt(self, handle: Handle, mode: str = "recompute") -> None:
        self.scheduler.preempt(handle.request, make_preemption(mode, self._costs))

    def fork(self, handle: Handle) -> Handle:
        """A child whose tokens begin with the parent's so far."""
        child_id = f"{handle.id}/fork{self._arrivals}"
        child = self.scheduler.fork(handle.request, child_id, self._arrivals)
        self._arrivals += 1
        self._requests[child_id] = child
        facts = self.device.facts[handle.id]
        self.device.facts[child_id] = Facts(facts.namespace, tuple(child.outputs))
        return Handle(self, child_id)

    # --- steps ------------------------------------------------------------------------------------------------

    def step(self) -> StepPlan:
        """Plan, execute, and take in the results that are due."""
        plan = self.scheduler.schedule()
        self._flights.append(_Flight(plan, self.device.submit(plan)))
        while len(self._flights) > (self._depth if plan.ids else 0):
            self._land()
        return plan

    def run(self, max_steps: int = 1000) -> int:
        """Step until nothing is left; returns how many. Raises ``AssertionError`` where ``max_steps`` do not do."""
        for taken in range(max_steps):
            if not self.scheduler.num_unfinished and not self._flights:
                return taken
            self.step()
        assert not self.scheduler.num_unfinished, (
            f"{self.scheduler.num_unfinished} requests left after {max_steps} steps"
        )
        return max_steps

    def fail_next_step(self) -> None:
        self.device.fail_next()

    def reset_prefix_cache(self, *, preempt: bool = False) -> None:
        """Later requests hit nothing of now; with ``preempt`` the running compute their tokens anew as well."""
        if preempt:
            self.scheduler.preempt_all()
        self.scheduler.reset_prefix_cache()
        self._poison_free_blocks()

    # --- what can be seen -------------------------------------------------------------------------------------

    def solo(self, handle: Handle) -> list[int]:
        """The handle's tokens run alone on an empty, huge cache: computed here from the model, with no scheduler."""
        request = handle.request
        params = request.spec.params
        namespace = self.device.facts[handle.id].namespace
        script = self.device.facts[handle.id].script
        context = [Slot(token, at, namespace) for at, token in enumerate(request.spec.prompt)]
        outputs: list[int] = []
        limit = min(params.max_tokens or self.scheduler.config.max_model_len, self._room(request))
        while len(outputs) < limit:
            draw = Draw(params.seed, request.spec.sample_index, len(outputs))
            token = script[len(outputs)] if len(outputs) < len(script) else next_token(context, draw)
            outputs.append(token)
            if token in request.stop_ids:
                break
            context.append(Slot(token, len(context), namespace))
        return outputs

    @property
    def free_blocks(self) -> int:
        return self.scheduler.kv.pool.num_free

    @property
    def free_host_blocks(self) -> int:
        return self.scheduler.kv.host.num_free

    @property
    def cached_blocks(self) -> int:
        return self.scheduler.kv.index.num_entries

    @property
    def free_list(self) -> list[int]:
        return self.scheduler.kv.pool.free_list

    @property
    def stats(self) -> SimulationStats:
        counted = self.scheduler.stats
        return SimulationStats(
            tracked_requests=self.scheduler.num_unfinished,
            num_preemptions=counted.num_preemptions,
            num_swaps_out=counted.num_swaps_out,
            num_recomputed_tokens=counted.num_recomputed_tokens,
            num_prompt_tokens=counted.num_prompt_tokens,
            num_generated_tokens=counted.num_generated_tokens,
            num_scheduled_tokens=counted.num_scheduled_tokens,
            prefix_queries=counted.prefix_queries,
            prefix_hits=counted.prefix_hits,
            evictions=self.scheduler.kv.pool.num_evictions,
            metadata_mismatches=self.device.metadata_mismatches,
            stale_results=counted.num_stale_results,
        )

    def check(self) -> None:
        """Raise ``AssertionError`` on any broken invariant."""
        self.scheduler.check()
        assert self.device.metadata_mismatches == 0, "a plan changed after it was handed over"

    def request_of(self, request_id: str) -> Request:
        try:
            return self._requests[request_id]
        except KeyError:
            raise BaseboardError(f"sample {request_id!r} does not exist yet: its prompt is not computed") from None

    def blocks_of(self, request_id: str) -> list[int]:
        request = self.request_of(request_id)
        return [] if request.finished else list(self.scheduler.kv.held(request_id))

    def in_flight_of(self, request_id: str) -> int:
        return sum(request_id in flight.plan.ids for flight in self._flights)

    # --- inside -----------------------------------------------------------------------------------------------

    def _room(self, request: Request) -> int:
        return self.scheduler.config.max_model_len - request.num_prompt

    def _land(self) -> None:
        flight = self._flights.popleft()
        try:
            result = flight.pending.result()
        except BaseboardError as failure:
            self.scheduler.fail_step(str(failure))
        else:
            for fork in self.scheduler.commit(result).forks:
                self._requests[fork.child.id] = fork.child
        self._poison_free_blocks()

    def _poison_free_blocks(self) -> None:
        """Blocks that nobody holds and the index does not know hold nothing that anybody may read."""
        if not self._flights:
            kv = self.scheduler.kv
            self.device.memory.poison(block for block in kv.pool.free_list if not kv.index.holds(block))


_LATER_ARGUMENTS: Final = {
    "delay_factor": 0.0,
    "num_draft_tokens": 0,
    "max_loras": None,
    "encoder_budget": None,
    "encoder_cache_size": None,
    "sliding_window": None,
    "load_timeout": None,
}
_LATER_SUBMIT: Final = {"adapter": None, "media": (), "grammar": None}


def _refuse_later(where: str, given: dict[str, Any], later: dict[str, Any]) -> None:
    """Arguments of features that are not built yet are refused by name, unless they ask for nothing."""
    for name, value in given.items():
        if name not in later:
            raise TypeError(f"{where}() got an unexpected keyword argument {name!r}")
        if value != later[name]:
            raise Unsupported([f"{where}({name}={value!r}): this release's core does not have that feature yet"])
