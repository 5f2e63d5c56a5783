"""An engine whose model says what a script says: no torch, no weights, every token known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from baseboard.contract import RowState, SamplingParams, StepPlan, StepResult
from baseboard.engine.costs import MeasuredCosts
from baseboard.engine.engine import Engine, EngineParts, ModelFacts, Prompt
from baseboard.engine.results import RequestOutput, TextDelta
from baseboard.kv.group import PoolShape
from baseboard.kv.prefix import PrefixIndex
from baseboard.scheduler.config import SchedulerConfig
from baseboard.scheduler.events import EventLog
from baseboard.scheduler.policy import Policy, make_kv, make_roles
from baseboard.scheduler.registry import Registry
from baseboard.scheduler.scheduler import Scheduler

_PLAIN, _NOBODY = Policy(), Registry()
EOS = 0
#: Token ids are indices: the first ends a text, each letter is a token, and a few are longer.
TEXTS = ("<eos>", *"abcdefghijklmnopqrstuvwxyz", "AB", "CD", "EF", "CX", "X")
VOCAB_SIZE = len(TEXTS)


def tokens(*texts: str) -> list[int]:
    return [TEXTS.index(text) for text in texts]


class TextTable:
    """The decoder."""

    def decode(self, token_ids: list[int], /, *, skip_special_tokens: bool) -> str:
        return "".join(TEXTS[token] for token in token_ids if not (skip_special_tokens and token == EOS))


@dataclass(frozen=True)
class Done:
    outcome: StepResult

    def result(self) -> StepResult:
        return self.outcome


@dataclass
class ScriptedExecutor:
    """Sample ``i`` of a prompt says the tokens of ``scripts[prompt][i]``, by output position."""

    scripts: Mapping[tuple[int, ...], Sequence[Sequence[int]]]
    rows: dict[str, RowState] = field(default_factory=dict)
    before_step: Callable[[StepPlan], None] = lambda plan: None
    closed: bool = False

    def submit(self, plan: StepPlan) -> Done:
        for row_id in plan.retired:
            del self.rows[row_id]
        for state in plan.entered:
            assert state.id not in self.rows
            self.rows[state.id] = state
        self.before_step(plan)
        columns = zip(plan.ids, plan.starts, plan.counts, plan.samples, strict=True)
        return Done(StepResult(plan.step, tuple(self._sampled(*row) for row in columns)))

    def close(self) -> None:
        self.closed = True

    def _sampled(self, row_id: str, start: int, count: int, samples: int) -> tuple[int, ...]:
        if not samples:
            return ()
        state = self.rows[row_id]
        lines = self.scripts[state.token_ids[: state.num_prompt_tokens]]
        position = start + count - state.num_prompt_tokens
        return tuple(lines[state.sample_index + nth][position] for nth in range(samples))


@dataclass
class Scripted:
    """An engine over a script, and all that came out of it."""

    engine: Engine
    executor: ScriptedExecutor
    deltas: list[TextDelta] = field(default_factory=list)
    outputs: dict[str, RequestOutput] = field(default_factory=dict)

    def add(self, prompt: Sequence[int], **params: Any) -> str:
        defaults = {"temperature": 0, "max_tokens": 16}
        return self.engine.add(Prompt(tuple(prompt)), SamplingParams(**(defaults | params)))

    def step(self) -> None:
        output = self.engine.step()
        self.deltas += output.deltas
        self.outputs |= {finished.request_id: finished for finished in output.finished}

    def abort(self, request_id: str) -> None:
        output = self.engine.abort(request_id)
        self.deltas += output.deltas
        self.outputs |= {finished.request_id: finished for finished in output.finished}

    def run(self) -> None:
        """Until nothing is left; then nothing may be held either."""
        for _ in range(200):
            if not self.engine.has_unfinished:
                break
            self.step()
        self.check_idle()

    def check_idle(self) -> None:
        scheduler = self.engine.scheduler
        assert not self.engine.has_unfinished
        assert scheduler.num_unfinished == 0
        assert scheduler.kv.pool.num_free == scheduler.kv.pool.num_blocks
        scheduler.check()

    def streamed(self, request_id: str, index: int = 0) -> str:
        """The deltas of one sample, joined. Only the last one says that it has ended."""
        mine = [delta for delta in self.deltas if (delta.request_id, delta.index) == (request_id, index)]
        assert [delta.finish_reason is None for delta in mine] == [True] * (len(mine) - 1) + [False]
        return "".join(delta.text for delta in mine)


def scripted(
    scripts: Mapping[tuple[int, ...], Sequence[Sequence[int]]],
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    make_executor: Callable[..., ScriptedExecutor] = ScriptedExecutor,
    policy: Policy = _PLAIN,
    registry: Registry = _NOBODY,
    clock: Callable[[], float] = lambda: 0.0,
) -> Scripted:
    config = SchedulerConfig(
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        max_model_len=256,
        pool_tokens=num_blocks * 4,
    )
    costs = MeasuredCosts(float("inf"))
    log = EventLog(clock)
    kv = make_kv(PoolShape(num_blocks, 4), 0, PrefixIndex())
    roles = replace(make_roles(policy, config, costs, registry), recorder=log)
    scheduler = Scheduler(config, kv, roles)
    executor = make_executor(scripts)
    facts = ModelFacts(VOCAB_SIZE, frozenset({EOS}), TextTable())
    return Scripted(Engine(EngineParts(scheduler, executor, facts, costs, clock, log=log)), executor)
