"""Runs plans on one local device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from baseboard.contract import BackendHooks, PendingStep, RowLogprobs, StepPlan, StepResult, TokenLogprobs
from baseboard.runtime.graph_batch import DecodeBatch
from baseboard.runtime.graphs import DecodeGraphs
from baseboard.runtime.kv_memory import KVMemory
from baseboard.runtime.logprobs import prompt_logprobs
from baseboard.runtime.model_loaded import LoadedModel
from baseboard.runtime.rows import Row, RowTable
from baseboard.runtime.sampler import SampledTokens, Sampler
from baseboard.runtime.sampling_rows import SamplingRow
from baseboard.runtime.step_batch import Assembled, BatchBuilder

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Finished:
    """A step that was run on the spot."""

    outcome: StepResult

    def result(self) -> StepResult:
        return self.outcome


@dataclass(frozen=True, slots=True)
class LocalParts:
    """What a local executor works with."""

    hook: BackendHooks
    model: LoadedModel
    kv: KVMemory
    rows: RowTable
    builder: BatchBuilder
    graphs: DecodeGraphs | None = None  #: None: every step is told kernel by kernel


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which positions of the step need logits: per sequence, the first and one past the last token of the step."""

    sequence: int
    first: int
    end: int
    num_prompt_logprobs: int  #: how many of them ask for the log-probability of the next prompt token


@dataclass(frozen=True, slots=True)
class _Extras:
    """By row of the plan: log-probabilities of the prompt, and why a row came to nothing."""

    prompt: Mapping[int, tuple[TokenLogprobs, ...]]
    failed: Mapping[int, str]


class LocalExecutor:
    """Loads a step into the device's arrays, runs the model once over all tokens, samples. One step at a time."""

    def __init__(self, parts: LocalParts) -> None:
        self._parts: Final = parts
        self._sampler: Final = Sampler()
        self._device: Final = parts.hook.torch_device()

    def submit(self, plan: StepPlan) -> PendingStep:
        parts = self._parts
        parts.rows.apply(plan)
        if plan.zeroes:
            parts.kv.zero(plan.zeroes)
        for op in plan.kv_ops:
            parts.kv.apply(op)
        if not plan.ids:
            return Finished(StepResult(plan.step, ()))
        step = parts.builder.build(plan, parts.rows)
        wanted = _wanted(plan, step)
        logits = self._forward(step, wanted)
        return Finished(self._sample(plan, step, wanted, logits))

    def close(self) -> None:
        if self._parts.graphs is not None:
            self._parts.graphs.release()
        self._parts.model.bridge.release()

    def _forward(self, step: Assembled, wanted: Sequence[_Wanted]) -> Tensor:
        parts = self._parts
        decodes, num_rows = DecodeBatch(step.batch, step.token_ids), sum(w.end - w.first for w in wanted)
        if parts.graphs is not None and parts.graphs.takes(decodes, num_rows):
            return parts.graphs.run(decodes)
        metadata = [
            parts.hook.build_attention_metadata(batch=step.batch, cache=cache.device) for cache in parts.kv.caches
        ]
        positions = np.concatenate([np.arange(w.first, w.end) for w in wanted] or [np.zeros(0, dtype=np.int64)])
        with parts.model.bridge.step(metadata):
            return parts.model.forward(
                self._to_device(step.token_ids), self._to_device(step.batch.positions), self._to_device(positions)
            )

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)

    def _sample(self, plan: StepPlan, step: Assembled, wanted: Sequence[_Wanted], logits: Tensor) -> StepResult:
        """Logits lie in the order of ``wanted``: a request's last position is the last of its rows."""
        lines: list[int] = []
        rows: list[SamplingRow] = []
        owners: list[int] = []  # plan row of each sampling row
        prompt: dict[int, tuple[TokenLogprobs, ...]] = {}
        failed: dict[int, str] = {}
        at = 0
        for want in wanted:
            row, plan_row = step.rows[want.sequence], step.order[want.sequence]
            if want.num_prompt_logprobs:
                try:
                    prompt[plan_row] = self._prompt_logprobs(step, want, logits[at : at + want.num_prompt_logprobs])
                except FloatingPointError as broken:
                    failed[plan_row] = str(broken)
            at += want.end - want.first
            samples = plan.samples[plan_row]
            lines.extend([at - 1] * samples)
            rows.extend(self._sampling_rows(row, samples))
            owners.extend([plan_row] * samples)
        if lines != list(range(len(logits))):
            logits = logits[torch.tensor(lines, dtype=torch.int64, device=logits.device)]
        sampled = self._sampler.sample(logits, rows)
        failed |= {owners[at]: reason for at, reason in sampled.failed.items()}
        return self._report(plan, owners, sampled, _Extras(prompt, failed))

    def _sampling_rows(self, row: Row, samples: int) -> list[SamplingRow]:
        """The row's own state first; the further samples of a prompt that was just computed get states of their own."""
        others = [replace(row.state, sample_index=row.state.sample_index + nth) for nth in range(1, samples)]
        return [row.sampling, *map(self._parts.rows.sampling_row, others)][:samples]

    def _prompt_logprobs(self, step: Assembled, want: _Wanted, logits: Tensor) -> tuple[TokenLogprobs, ...]:
        row = step.rows[want.sequence]
        start = int(step.batch.positions[want.first])
        following = row.tokens[start + 1 : start + 1 + want.num_prompt_logprobs]
        return prompt_logprobs(logits, following, row.state.params.prompt_logprobs or 0)

    def _report(
        self,
        plan: StepPlan,
        owners: Sequence[int],
        sampled: SampledTokens,
        extras: _Extras,
    ) -> StepResult:
        tokens: list[list[int]] = [[] for _ in plan.ids]
        logprobs: dict[int, list[TokenLogprobs]] = {}
        for at, (owner, token) in enumerate(zip(owners, sampled.token_ids, strict=True)):
            if owner in extras.failed or token is None:
                continue
            if not tokens[owner]:
                row = self._parts.rows[plan.ids[owner]]
                row.tokens.append(token)
                row.sampling.append(token)
            tokens[owner].append(token)
            if at in sampled.logprobs:
                logprobs.setdefault(owner, []).append(sampled.logprobs[at])
        return StepResult(
            step=plan.step,
            sampled=tuple([tuple(row) for row in tokens]),
            logprobs={
                owner: RowLogprobs(tuple(logprobs.get(owner, ())), extras.prompt.get(owner, ()))
                for owner in logprobs.keys() | extras.prompt.keys()
            },
            num_nans={owners[at]: count for at, count in sampled.num_nans.items()},
            failed=extras.failed,
        )


def _wanted(plan: StepPlan, step: Assembled) -> list[_Wanted]:
    """The last position of every sequence that samples, and all prompt positions of those that ask for them."""
    bounds = step.batch.query_start_loc.tolist()
    wanted: list[_Wanted] = []
    for sequence, (plan_row, row) in enumerate(zip(step.order, step.rows, strict=True)):
        first, end = bounds[sequence], bounds[sequence + 1]
        asked = 0
        if row.state.params.prompt_logprobs is not None:
            # Position p tells of token p + 1; the last prompt position tells of the first output.
            asked = max(0, min(plan.counts[plan_row], row.state.num_prompt_tokens - 1 - plan.starts[plan_row]))
        if plan.samples[plan_row]:
            wanted.append(_Wanted(sequence, first if asked else end - 1, end, asked))
        elif asked:
            wanted.append(_Wanted(sequence, first, first + asked, asked))
    return wanted
