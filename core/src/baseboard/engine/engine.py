"""The step loop: plan, run, take in, turn tokens into text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from baseboard.contract import (
    BackendFault,
    ContractError,
    Executor,
    RequestRejected,
    RowLogprobs,
    SamplingParams,
    StepPlan,
)
from baseboard.engine.costs import MeasuredCosts
from baseboard.engine.detokenizer import Decoder
from baseboard.engine.generation import Generation
from baseboard.engine.results import RequestOutput, TextDelta
from baseboard.engine.sample import Sample
from baseboard.request.admission import check_token_ids
from baseboard.request.request import ANYBODY, Caller, Request, RequestSpec
from baseboard.request.status import Event
from baseboard.scheduler.commit import Outcome
from baseboard.scheduler.events import EventLog
from baseboard.scheduler.gates import StepInputs
from baseboard.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the engine must know of the model."""

    vocab_size: int
    eos_token_ids: frozenset[int]
    decoder: Decoder


@dataclass(frozen=True, slots=True)
class Prompt:
    """A checked prompt."""

    token_ids: tuple[int, ...]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a request is served; what is made of it is the policy's."""

    priority: int = 0  #: lower is more important
    tenant: str | None = None  #: on whose behalf; None is nobody in particular
    caller: Caller = ANYBODY  #: who asked; comes back with the outputs


_USUAL: Final = Terms()


@dataclass(slots=True)
class StepOutput:
    """What one step gave."""

    deltas: list[TextDelta] = field(default_factory=list[TextDelta])
    finished: list[RequestOutput] = field(default_factory=list[RequestOutput])

    def by_client(self) -> dict[int, StepOutput]:
        """The same, split by the client whose request it is; clients that got nothing are left out."""
        parts: dict[int, StepOutput] = {}
        for delta in self.deltas:
            parts.setdefault(delta.client, StepOutput()).deltas.append(delta)
        for output in self.finished:
            parts.setdefault(output.caller.client, StepOutput()).finished.append(output)
        return parts


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is made of; ``clock`` gives seconds that never go back."""

    scheduler: Scheduler
    executor: Executor
    model: ModelFacts
    costs: MeasuredCosts
    clock: Callable[[], float]
    seed: int = 0
    log: EventLog | None = None  #: that the scheduler writes to; without it outputs have no metrics


class Engine:
    """Many requests, one device. Not thread-safe: one caller adds, steps and aborts."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts: Final = parts
        self._scheduler: Final = parts.scheduler
        self._executor: Final = parts.executor
        self._generations: Final[dict[str, Generation]] = {}
        self._owner: Final[dict[str, Sample]] = {}  # by the scheduler's request id
        self._generation_of: Final[dict[str, Generation]] = {}  # likewise
        self._arrivals = 0
        self._fault: str | None = None

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    @property
    def has_unfinished(self) -> bool:
        return bool(self._generations)

    def check_request(self, prompt: Prompt, params: SamplingParams) -> None:
        """Raise ``RequestRejected`` for a request that can never run, naming value, limit and way out."""
        check_token_ids(prompt.token_ids, params, self._parts.model.vocab_size)
        self._scheduler.config.check_prompt(len(prompt.token_ids), params.n)

    def add(self, prompt: Prompt, params: SamplingParams, request_id: str | None = None, terms: Terms = _USUAL) -> str:
        """Queue a request; returns its id. Raises ``RequestRejected``, or ``BackendFault`` once the device is lost."""
        if self._fault is not None:
            raise BackendFault(self._fault)
        self.check_request(prompt, params)
        spec = self._spec(prompt, params, request_id, terms)
        request = self._scheduler.add(spec)
        self._arrivals += 1
        generation = Generation(Sample(0, request, self._parts.model.decoder), prompt.text)
        self._generations[spec.id] = generation
        self._follow(generation, generation.samples[0])
        return spec.id

    def open_input(self, request_id: str) -> None:
        """More of the prompt of a request just added is to come: nothing is sampled before :meth:`end_input`."""
        self._scheduler.open_input(self._owner[request_id].request)

    def add_input(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Append to an open prompt. Raises ``RequestRejected``, and changes nothing, for what cannot be."""
        sample = self._owner.get(request_id)
        if sample is None:
            raise RequestRejected(f"request {request_id!r} is unknown or has finished: submit a new one")
        check_token_ids(token_ids, sample.request.spec.params, self._parts.model.vocab_size)
        self._scheduler.add_input(sample.request, token_ids)

    def end_input(self, request_id: str) -> None:
        """The prompt is whole; a request that is unknown or finished is left alone."""
        if (sample := self._owner.get(request_id)) is not None:
            self._scheduler.end_input(sample.request)

    def step(self) -> StepOutput:
        """Run one step. Whatever a backend or a model raises ends only the requests of that step.

        A lost device (``BackendFault``) ends every request with an error; from then on ``add`` raises.
        """
        plan = self._scheduler.schedule(StepInputs(now=self._parts.clock()))
        began = self._parts.clock()
        try:
            result = self._executor.submit(plan).result()
            outcome = self._scheduler.commit(result)
        except BackendFault as fault:
            return self._lose_device(str(fault))
        except (ContractError, KeyboardInterrupt, SystemExit):
            # Not a matter of the step's requests. But a plan may not stay without a result, or it gets the next one's.
            if self._scheduler.num_in_flight:
                self._fail_step("the step was interrupted")
            raise
        except Exception as failure:  # a plugin's or a model's, of whatever type: it must not end the others
            return self._fail_step(f"{type(failure).__name__}: {failure}")
        if plan.num_tokens > len(plan.ids):  # mostly prefill: what it takes to compute tokens, not to read weights
            self._parts.costs.observe(self._parts.clock() - began, plan.num_tokens)
        return self._take_in(plan, outcome)

    def abort(self, request_id: str) -> StepOutput:
        """End a request and all its samples; one that is unknown or finished is left alone."""
        output = StepOutput()
        generation = self._generations.get(request_id)
        if generation is not None:
            for sample in generation.samples:
                if not sample.request.finished:
                    self._scheduler.finish(sample.request, Event.ABORT)
                    self._end(sample, output)
            self._close_finished([generation], output)
        return output

    def reset_prefix_cache(self) -> None:
        """Later requests hit nothing that is cached now; the device wipes it with the next step."""
        self._scheduler.reset_prefix_cache()

    def close(self) -> None:
        self._executor.close()

    # --- inside -----------------------------------------------------------------------------------------------

    def _spec(self, prompt: Prompt, params: SamplingParams, request_id: str | None, terms: Terms) -> RequestSpec:
        model, config = self._parts.model, self._scheduler.config
        stops = frozenset(params.stop_token_ids)
        if params.seed is None and not params.greedy:
            params = params.replace(seed=_derived_seed(self._parts.seed, self._arrivals))
        return RequestSpec(
            id=request_id if request_id is not None else f"request-{self._arrivals}",
            prompt=prompt.token_ids,
            params=params,
            max_total=config.max_total(len(prompt.token_ids), params.max_tokens),
            stop_ids=stops if params.ignore_eos else stops | model.eos_token_ids,
            priority=terms.priority,
            arrival=self._arrivals,
            arrived_at=self._parts.clock(),
            tenant=terms.tenant,
            caller=terms.caller,
        )

    def _follow(self, generation: Generation, sample: Sample) -> None:
        self._owner[sample.request.id] = sample
        self._generation_of[sample.request.id] = generation

    def _take_in(self, plan: StepPlan, outcome: Outcome) -> StepOutput:
        output = StepOutput()
        for fork in outcome.forks:
            generation = self._generation_of[fork.parent.id]
            sample = Sample(fork.child.spec.sample_index, fork.child, self._parts.model.decoder)
            generation.samples.append(sample)
            self._follow(generation, sample)
        for row, logprobs in outcome.result.logprobs.items():
            if logprobs.prompt and (generation := self._generation_of.get(plan.ids[row])):
                generation.take_prompt(plan.starts[row], logprobs.prompt)
        for request, token, row in zip(outcome.requests, outcome.tokens, outcome.rows, strict=True):
            self._take_token(request, token, outcome.result.logprobs.get(row), output)
        for request in outcome.finished:
            # One that a scheduling plugin failed on may have been given up by the caller before this is told.
            sample = self._owner.get(request.id)
            if request.finish_reason == "error" and sample is not None and sample.request is request:
                self._end(sample, output)
        touched = {id(g): g for g in map(self._generation_of.get, _ids(outcome)) if g is not None}
        self._close_finished(list(touched.values()), output)
        return output

    def _take_token(self, request: Request, token: int, logprobs: RowLogprobs | None, output: StepOutput) -> None:
        sample = self._owner[request.id]
        # A row with several samples lists them in sample order; any other row has one.
        at = sample.index if logprobs is not None and len(logprobs.sampled) > 1 else 0
        text = sample.take(token, logprobs.sampled[at : at + 1] if logprobs else ())
        if sample.stop is not None:
            self._scheduler.finish(request, Event.STOP)
        self._tell(sample, text, output)

    def _end(self, sample: Sample, output: StepOutput) -> None:
        """A request was ended by something other than a token of its own."""
        self._tell(sample, sample.end(), output)

    def _tell(self, sample: Sample, text: str, output: StepOutput) -> None:
        request = sample.request
        name, client = self._generation_of[request.id].id, request.spec.caller.client
        output.deltas.append(TextDelta(name, sample.index, text, sample.finish_reason, request.error, client))

    def _close_finished(self, generations: Sequence[Generation], output: StepOutput) -> None:
        for event in self._parts.log.take() if self._parts.log is not None else ():
            self._generation_of[event.request_id].milestones.note(event)
        for generation in generations:
            if generation.finished and generation.id in self._generations:
                output.finished.append(generation.output())
                del self._generations[generation.id]
                for sample in generation.samples:
                    del self._owner[sample.request.id]
                    del self._generation_of[sample.request.id]

    def _fail_step(self, reason: str) -> StepOutput:
        output = StepOutput()
        failed = self._scheduler.fail_step(reason)
        samples = [s for s in map(self._owner.get, (request.id for request in failed)) if s and s.request in failed]
        generations = [self._generation_of[sample.request.id] for sample in samples]
        for sample in samples:
            self._end(sample, output)
        self._close_finished(generations, output)
        return output

    def _lose_device(self, reason: str) -> StepOutput:
        self._fault = f"the device is lost ({reason}): build a new engine"
        output = self._fail_step(reason)
        for generation in list(self._generations.values()):
            for sample in generation.samples:
                if not sample.request.finished:
                    sample.request.error = reason
                    self._scheduler.finish(sample.request, Event.FAIL)
                    self._end(sample, output)
            self._close_finished([generation], output)
        return output


def _ids(outcome: Outcome) -> list[str]:
    return [request.id for request in (*outcome.requests, *outcome.finished)]


def _derived_seed(engine_seed: int, arrival: int) -> int:
    """A seed of its own for each request that brought none; the same in every run of the same requests."""
    return int.from_bytes(blake2b(f"{engine_seed}/{arrival}".encode(), digest_size=7).digest(), "little")
