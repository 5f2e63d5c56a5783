"""The scheduler and KV manager at work on a simulated device: pure Python, exact, and merciless to mistakes."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final

from baseboard.contract.errors import BaseboardError
from baseboard.contract.plan import PendingStep, StepPlan, TokenLogprobs
from baseboard.contract.sampling import SamplingParams
from baseboard.discovery import registry_for
from baseboard.kv.events import RecordedIndex
from baseboard.kv.group import PoolShape
from baseboard.kv.prefix import NoPrefixIndex, PrefixIndex
from baseboard.request.request import Caller, RequestSpec, Task
from baseboard.request.status import Event
from baseboard.scheduler.book import sample_id
from baseboard.scheduler.common_prefix import CommonPrefix
from baseboard.scheduler.config import SchedulerConfig
from baseboard.scheduler.encoder import EncoderInputs
from baseboard.scheduler.encoder_rules import EncoderLimits, make_encoder_rules
from baseboard.scheduler.events import EventLog, RequestEvent
from baseboard.scheduler.gates import Hold, StepInputs
from baseboard.scheduler.planner import Roles
from baseboard.scheduler.policy import (
    Layers,
    Policy,
    make_kv,
    make_preemption,
    make_roles,
    splits_prompts,
    with_encoder,
)
from baseboard.scheduler.preemption import Costs
from baseboard.scheduler.registry import Registry
from baseboard.scheduler.scheduler import Scheduler
from baseboard.scheduler.stop import Repetition
from baseboard.testing.connector import SimulatedConnector
from baseboard.testing.device import Facts, Nastiness, Outside, SimulatedDevice
from baseboard.testing.disorder import Disorder
from baseboard.testing.encoder import MediaItem, media_spans
from baseboard.testing.encoder_source import SimulatedEncoderSource
from baseboard.testing.faults import ArtificialPreemption, LateAborts
from baseboard.testing.grammar import CallableGrammar, Grammar
from baseboard.testing.handle import Handle, SimulationStats
from baseboard.testing.logprobs import LogprobBook
from baseboard.testing.mailboxes import Mailboxes
from baseboard.testing.memory import SimulatedMemory
from baseboard.testing.model import namespace_number
from baseboard.testing.oracle import Oracle
from baseboard.testing.ranks import RankedMemory
from baseboard.testing.sight import Sight


@dataclass(frozen=True, slots=True)
class FixedCosts:
    """A machine on which computing a token takes as long as moving a block one way."""

    def costs(self) -> Costs:
        return Costs(seconds_per_token=1e-4, seconds_per_block=1e-4)


@dataclass(frozen=True, slots=True)
class _Flight:
    plan: StepPlan
    pending: PendingStep
    not_before: int  #: step in which its result may be taken in at the earliest


class Simulation:
    """Scheduler, KV manager and simulated device. ``num_blocks`` excludes the null block.

    Names of other parties' policies mean what is installed, or what is in ``registry``.
    """

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
        delay_factor: float = 0.0,
        max_loras: int | None = None,
        max_num_scheduled_tokens: int | None = None,
        num_draft_tokens: int = 0,
        repetition: Repetition | None = None,
        load_timeout: float | None = None,
        encoder_budget: int | None = None,
        encoder_cache_size: int | None = None,
        split_inputs: bool = True,
        chunk_alignment: int = 1,
        adapters: Collection[str] | None = None,
        extensions: Sequence[str] = (),
        connector: str | None = None,
        registry: Registry | None = None,
        pipeline_depth: int = 0,
        seed: int = 0,
        reverse_rows: bool = False,
        copy_latency: int = 0,
        late_metadata: bool = False,
        sliding_window: int | None = None,
        layer_windows: Sequence[int | None] | None = None,
        context_ranks: int = 1,
        device_in_order: bool = True,
        kv_events: bool = False,
        common_prefix: bool = False,
        preempt_probability: float = 0.0,
    ) -> None:
        self._costs: Final = FixedCosts()
        self._depth: Final = pipeline_depth
        self._arrivals = 0
        self._now = 0.0
        self._throttled = False
        self.seed: Final = seed
        sight = Sight(tuple(layer_windows or (sliding_window,)))
        self._oracle: Final = Oracle(sight, max_model_len)
        pool = PoolShape(num_blocks, block_size, context_ranks, late_writes=not device_in_order)
        layers = Layers.seeing(sight.windows, pool, max_num_batched_tokens, pipeline_depth + 1)
        if kv_events and not prefix_caching:
            raise ValueError("kv_events tell of the prefix cache: enable prefix_caching, or do without them")
        cached = RecordedIndex(pool.block_tokens) if kv_events else PrefixIndex()
        kv = make_kv(pool, num_host_blocks, cached if prefix_caching else NoPrefixIndex(), layers)
        config = SchedulerConfig(
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            pool_tokens=kv.longest,
            chunked_prefill=chunked_prefill and splits_prompts(policy),
            max_num_active_seqs=max_num_active_seqs,
            max_num_scheduled_tokens=max_num_scheduled_tokens,
            adapters=None if adapters is None else frozenset(adapters),
            block_size=kv.block_size,
            load_timeout=load_timeout,
        )
        names = Policy(
            policy,
            preemption,
            long_prefill_token_threshold,
            delay_factor,
            max_loras,
            chunk_alignment,
            extensions=tuple(extensions),
            connector=connector,
        )
        ranks = [SimulatedMemory(num_blocks, num_host_blocks, block_size, copy_latency) for _ in range(context_ranks)]
        memory = ranks[0] if context_ranks == 1 else RankedMemory(ranks)
        self.connector: Final = SimulatedConnector(memory, self._namespace_number_of)
        found = registry_for(names) if registry is None else registry
        roles = _with_stops(make_roles(names, config, self._costs, found), repetition)
        self._log: Final = EventLog(self._clock)
        roles = replace(
            roles,
            limits=roles.limits + layers.limits,
            sources=(*roles.sources, self.connector),
            recorder=self._log,
            common_prefix=CommonPrefix(pool.block_tokens, sight.whole) if common_prefix else None,
        )
        self.encoder_source: Final = SimulatedEncoderSource()
        rules = make_encoder_rules(
            roles.limits, config, EncoderLimits(encoder_budget, encoder_cache_size, split_inputs)
        )
        self.encoder: Final = EncoderInputs(rules, (self.encoder_source,))
        self.scheduler: Final = Scheduler(config, kv, with_encoder(roles, self.encoder))
        nastiness = Nastiness(reverse_rows, late_metadata)
        outside = Outside(self.connector.fetch, self.encoder_source.fetch)
        self.device: Final = SimulatedDevice(memory, nastiness, num_draft_tokens, outside, sight)
        self._executor: Final = self.device if device_in_order else Disorder(self.device)
        self._chance: Final = ArtificialPreemption(preempt_probability, seed)
        self._late: Final = LateAborts()
        self._mailboxes: Final = Mailboxes()
        self.logprobs: Final = LogprobBook()
        self._step = 0
        self._delay = 0
        self._load_timeout: Final = load_timeout
        self._handles: Final[dict[str, Handle]] = {}  # by id, the latest of each
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
        adapter: str | None = None,
        grammar: Grammar | None = None,
        media: Sequence[MediaItem] = (),
        source: Sequence[int] = (),
        tenant: str | None = None,
        streaming: bool = False,
        task: str = "generate",
        client: int = 0,
        trace: Mapping[str, str] | None = None,
        kv_transfer: Mapping[str, Any] | None = None,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
    ) -> Handle:
        """Raises ``RequestRejected`` for a request that can never run."""
        params = SamplingParams(
            n=n,
            max_tokens=max_tokens,
            stop_token_ids=tuple(stop_token_ids),
            seed=seed,
            temperature=0.0 if seed is None else 1.0,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )
        spec = RequestSpec(
            id=self._free_id() if request_id is None else request_id,
            prompt=tuple(prompt),
            params=params,
            max_total=self.scheduler.config_beside(len(source)).max_total(len(prompt), max_tokens),
            stop_ids=frozenset(stop_token_ids),
            priority=priority,
            arrival=self._arrivals,
            namespace=_namespace(salt, adapter),
            arrived_at=self._now,
            adapter=adapter,
            media=media_spans(media),
            source=tuple(source),
            tenant=tenant,
            task=Task(task),
            caller=Caller(client, trace),
            kv_transfer=kv_transfer,
        )
        request = self.scheduler.add(spec)
        self._arrivals += 1
        namespace = namespace_number(spec.namespace)
        first, *others = [
            self._know(Handle(self, sample_id(spec.id, index), request, Facts(namespace, index))) for index in range(n)
        ]
        first.samples.extend(others)
        if grammar is not None:
            self.scheduler.await_grammar(request)
            for sample in first.samples:
                sample.facts.grammar = grammar
        if streaming:
            self.scheduler.open_input(request)
        return first

    def add_input(self, handle: Handle, tokens: Sequence[int]) -> None:
        """More of the prompt of a request that was submitted with ``streaming``."""
        self.scheduler.add_input(handle.request, tokens)

    def end_input(self, handle: Handle) -> None:
        """The prompt is whole: from now on it samples."""
        self.scheduler.end_input(handle.request)

    def give_up(self, handle: Handle) -> None:
        """End a request as ``ignored`` if it has not begun yet."""
        self.scheduler.give_up(handle.request)

    def script(self, handle: Handle, tokens: Sequence[int]) -> None:
        """Force the outputs of ``handle``, from its output 0; what lies beyond is sampled as usual."""
        handle.facts.script = tuple(tokens)

    def accept_drafts(self, handle: Handle, counts: Sequence[int]) -> None:
        """How many drafts are right in each verification to come; afterwards as the text has it."""
        handle.facts.accept = list(counts)

    def grammar_ready(self, handle: Handle, error: str | None = None) -> None:
        """The grammar is compiled; with ``error`` it could not be, and the request ends."""
        request, grammar = handle.request, handle.facts.grammar
        if grammar is None:
            raise BaseboardError(f"request {handle.id!r} has no grammar")
        if error is None:
            self.scheduler.grammar_ready(request, CallableGrammar(grammar))
        elif not request.finished:
            request.error = error
            self.scheduler.finish(request, Event.FAIL)

    def abort(self, handle: Handle, *, deliver_after: int = 0) -> None:
        """End a request and all its samples, in whatever state; a finished one is left alone.

        With ``deliver_after`` the scheduler hears of it so many steps later.
        """
        if deliver_after:
            self._late.add(handle, self._step + deliver_after)
            return
        if handle.id != handle.request.id and not handle.finish_reason:
            raise BaseboardError(f"sample {handle.id!r} does not exist yet: its prompt is not computed")
        for sample in handle.samples:
            self.scheduler.finish(sample.request, Event.ABORT)

    def preempt(self, handle: Handle, mode: str = "recompute") -> None:
        self.scheduler.preempt(handle.request, make_preemption(mode, self._costs))

    def fork(self, handle: Handle) -> Handle:
        """A child whose tokens begin with the parent's so far."""
        child_id = f"{handle.id}/fork{self._arrivals}"
        child = self.scheduler.fork(handle.request, child_id, self._arrivals)
        self._arrivals += 1
        return self._know(Handle(self, child_id, child, replace(handle.facts, script=tuple(child.outputs))))

    # --- steps ------------------------------------------------------------------------------------------------

    def step(self) -> StepPlan:
        """Plan, execute, and take in the results that are due."""
        self.encoder_source.step(self._now, self._load_timeout)
        for handle in self._late.due(self._step):
            self.abort(handle)
        self._chance.strike(self.scheduler, self._costs)
        self.connector.step()
        plan = self.scheduler.schedule(StepInputs(now=self._now, throttled=self._throttled))
        self._flights.append(_Flight(plan, self._executor.submit(plan), self._step + self._delay))
        self._delay = 0
        while len(self._flights) > (self._depth if plan.ids else 0) and self._flights[0].not_before <= self._step:
            self._land()
        self._step += 1
        return plan

    def delay_next_result(self, steps: int) -> None:
        """The result of the next step comes so many steps later than it would, and those after it behind it."""
        self._delay = steps

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

    def pause(self, hold: str) -> None:
        """``"new"`` holds back what has never started, ``"all"`` everything, ``"none"`` goes on."""
        self.scheduler.pause(Hold(hold))

    def throttle(self, throttled: bool) -> None:  # noqa: FBT001 - the public surface, fixed by the design
        """While on, no step begins a prefill."""
        self._throttled = throttled

    def tick(self, seconds: float) -> None:
        """Let the injected clock go on."""
        self._now += seconds

    def fail_next_step(self) -> None:
        self.device.fail_next()

    def reset_prefix_cache(self, *, preempt: bool = False) -> None:
        """Later requests hit nothing of now; with ``preempt`` the running compute their tokens anew as well."""
        if preempt:
            self.scheduler.preempt_all()
        self.scheduler.reset_prefix_cache()

    # --- what can be seen -------------------------------------------------------------------------------------

    def solo(self, handle: Handle) -> list[int]:
        """The handle's tokens run alone on an empty, huge cache: computed from the model, with no scheduler."""
        return self._oracle.outputs(handle.request, handle.facts)

    def solo_pooled(self, handle: Handle) -> int:
        """The handle's pooled value, computed in the same way."""
        return self._oracle.pooled(handle.request, handle.facts)

    def solo_prompt_logprobs(self, handle: Handle) -> list[TokenLogprobs | None]:
        """Of each prompt token after those before it, in the same way; None for the first."""
        return self._oracle.prompt_logprobs(handle.request, handle.facts)

    @property
    def events(self) -> Sequence[RequestEvent]:
        """What happened to requests, in order, by the simulation's clock."""
        return self._log.events

    def delivered(self, client: int) -> Mapping[str, list[int]]:
        """By request id, the tokens that this client has been given."""
        return self._mailboxes.of(client)

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
        if not self._flights:
            self.encoder.check_store(self.device.encoder.contents)

    def blocks_of(self, handle: Handle) -> list[int]:
        request = handle.request
        return [] if request.finished else list(self.scheduler.kv.held(request.id))

    def in_flight_of(self, handle: Handle) -> int:
        return sum(handle.request.id in flight.plan.ids for flight in self._flights)

    # --- inside -----------------------------------------------------------------------------------------------

    def _know(self, handle: Handle) -> Handle:
        self._handles[handle.id] = handle
        self.device.facts[handle.id] = handle.facts
        return handle

    def _free_id(self) -> str:
        return next(name for name in map("r{}".format, count(self._arrivals)) if name not in self._handles)

    def _clock(self) -> float:
        return self._now

    def _namespace_number_of(self, request_id: str) -> int:
        return self.device.facts[request_id].namespace

    def _land(self) -> None:
        flight = self._flights.popleft()
        try:
            result = flight.pending.result()
        except BaseboardError as failure:
            self.scheduler.fail_step(str(failure))
        else:
            outcome = self.scheduler.commit(result)
            for fork in outcome.forks:
                self._handles[fork.child.id].request = fork.child
            self._mailboxes.deliver(outcome)
            self.logprobs.take_in(flight.plan, outcome)
        self._poison_free_blocks()

    def _poison_free_blocks(self) -> None:
        """Blocks that nobody holds and the index does not know hold nothing that anybody may read."""
        if not self._flights:
            kv, moving = self.scheduler.kv, self.scheduler.moving_out
            free = (block for block in kv.pool.free_list if block not in moving)
            self.device.memory.poison(block for block in free if not kv.index.holds(block))


def _with_stops(roles: Roles, repetition: Repetition | None) -> Roles:
    return roles if repetition is None else replace(roles, stops=(repetition, *roles.stops))


def _namespace(salt: str | None, adapter: str | None) -> bytes:
    """Whose prefixes may be shared: the same salt and the same adapter; an empty salt is none."""
    return (salt or "").encode() + (b"\0adapter\0" + adapter.encode() if adapter is not None else b"")
