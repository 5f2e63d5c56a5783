"""The simulated device: an executor whose text gives away every wrong block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from baseboard.contract.errors import BaseboardError
from baseboard.contract.plan import BlockPair, KVOpKind, RowState, StepPlan, StepResult, TableUpdate
from baseboard.testing.memory import SimulatedMemory
from baseboard.testing.model import Draw, Slot, next_token


class InjectedFailure(BaseboardError):
    """The failure that ``fail_next`` asked for."""


@dataclass(slots=True)
class _Row:
    state: RowState
    tokens: list[int]
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class Nastiness:
    """What a real device may do and a scheduler must stand."""

    reverse_rows: bool = False  #: execute the last row first
    late_metadata: bool = False  #: read the plan when it executes, not when it is handed over


@dataclass(slots=True)
class _Pending:
    device: SimulatedDevice
    plan: StepPlan
    as_given: str
    outcome: StepResult | None = None

    def result(self) -> StepResult:
        if self.outcome is None:
            if repr(self.plan) != self.as_given:
                self.device.metadata_mismatches += 1
            self.outcome = self.device.run(self.plan)
        return self.outcome


@dataclass(slots=True)
class Facts:
    """What the test knows of a request and the device cannot tell from the plan."""

    namespace: int = 0
    script: Sequence[int] = field(default_factory=tuple[int, ...])  #: forced outputs, from output 0


class SimulatedDevice:
    """Keeps (token, position, namespace) in every slot; the next token is a hash of what it reads through the table."""

    def __init__(self, memory: SimulatedMemory, nastiness: Nastiness) -> None:
        self.memory: Final = memory
        self.metadata_mismatches = 0
        self.facts: Final[dict[str, Facts]] = {}
        self._nastiness: Final = nastiness
        self._rows: Final[dict[str, _Row]] = {}
        self._fail_next = False

    @property
    def num_rows(self) -> int:
        """Rows whose state is held."""
        return len(self._rows)

    def fail_next(self) -> None:
        """The next step that executes raises ``InjectedFailure``."""
        self._fail_next = True

    def submit(self, plan: StepPlan) -> _Pending:
        if self._nastiness.late_metadata:
            return _Pending(self, plan, repr(plan))
        return _Pending(self, plan, "", self.run(plan)) if not self._fail_next else _Pending(self, plan, repr(plan))

    def close(self) -> None:
        self._rows.clear()

    def run(self, plan: StepPlan) -> StepResult:
        """Execute a plan in the order that the contract gives."""
        self.memory.begin_step()
        self._update_rows(plan)
        if self._fail_next:
            self._fail_next = False
            raise InjectedFailure(f"step {plan.step} was told to fail")
        self.memory.poison(plan.zeroes)
        for op in plan.kv_ops:
            self.memory.move(op.kind, op.pairs)
        order = list(range(len(plan.ids)))
        if self._nastiness.reverse_rows:
            order.reverse()
        sampled: list[tuple[int, ...]] = [()] * len(order)
        for at in order:
            sampled[at] = self._compute(plan.ids[at], plan.starts[at], plan.counts[at], plan.samples[at])
        return StepResult(plan.step, tuple(sampled))

    def execute(
        self,
        copies: Sequence[tuple[int, int]] = (),
        swaps_out: Sequence[tuple[int, int]] = (),
        swaps_in: Sequence[tuple[int, int]] = (),
        writes: Mapping[tuple[int, int], Slot] | None = None,
        reads: Sequence[int] = (),
    ) -> list[list[Slot]]:
        """The device alone, one step: moves, then writes by (block, offset); returns the content of ``reads``."""
        self.memory.begin_step()
        for kind, pairs in (
            (KVOpKind.SWAP_OUT, swaps_out),
            (KVOpKind.SWAP_IN, swaps_in),
            (KVOpKind.COPY, copies),
        ):
            if pairs:
                self.memory.move(kind, [BlockPair(*pair) for pair in pairs])
        for (block, offset), content in (writes or {}).items():
            self.memory.write(block, offset, content)
        return [self.memory.read([block], self.memory.block_size) for block in reads]

    def _update_rows(self, plan: StepPlan) -> None:
        for row_id in plan.retired:
            del self._rows[row_id]
        for state in plan.entered:
            if state.id in self._rows:
                raise ValueError(f"row {state.id!r} enters but was never retired")
            self._rows[state.id] = _Row(state, list(state.token_ids), list(state.blocks))
        for update in plan.updates:
            self._update_table(update)

    def _update_table(self, update: TableUpdate) -> None:
        blocks = self._rows[update.id].blocks
        if update.first > len(blocks):
            raise ValueError(f"table of {update.id!r} has {len(blocks)} entries, update begins at {update.first}")
        blocks[update.first :] = update.blocks

    def _compute(self, row_id: str, start: int, count: int, samples: int) -> tuple[int, ...]:
        row = self._rows[row_id]
        facts = self.facts[row_id]
        size = self.memory.block_size
        for position in range(start, start + count):
            block = row.blocks[position // size]
            self.memory.write(block, position % size, Slot(row.tokens[position], position, facts.namespace))
        if not samples:
            return ()
        context = self.memory.read(row.blocks, start + count)
        output_index = start + count - row.state.num_prompt_tokens
        params = row.state.params
        drawn = tuple(
            self._draw(row_id, context, Draw(params.seed, row.state.sample_index + nth, output_index), nth)
            for nth in range(samples)
        )
        row.tokens.append(drawn[0])
        return drawn

    def _draw(self, row_id: str, context: Sequence[Slot], draw: Draw, nth: int) -> int:
        script = self.script_of(row_id, nth)
        if draw.output_index < len(script):
            return script[draw.output_index]
        return next_token(context, draw)

    def script_of(self, row_id: str, nth: int) -> Sequence[int]:
        facts = self.facts.get(f"{row_id}#{nth}" if nth else row_id)
        return facts.script if facts else ()
