"""The simulated device: an executor whose text gives away every wrong block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from baseboard.contract.errors import BaseboardError
from baseboard.contract.media import ContentId
from baseboard.contract.plan import (
    BlockPair,
    KVOpKind,
    PendingStep,
    RowLogprobs,
    StepPlan,
    StepResult,
    TableUpdate,
    TokenLogprobs,
)
from baseboard.scheduler.sources import Place
from baseboard.testing.encoder import FetchEncoding, SimulatedEncoder, no_encodings, with_inputs
from baseboard.testing.grammar import Grammar
from baseboard.testing.memory import SimulatedMemory
from baseboard.testing.model import POISON, VOCABULARY, Draw, Slot, next_token, pooled_value, token_logprobs
from baseboard.testing.sight import Sight
from baseboard.testing.source import coloured, source_slots
from baseboard.testing.work import Job, Lost, Row, StepWork


class InjectedFailure(BaseboardError):
    """The failure that ``fail_next`` asked for."""


@dataclass(frozen=True, slots=True)
class Nastiness:
    """What a real device may do and a scheduler must stand."""

    reverse_rows: bool = False  #: execute the last row first
    late_metadata: bool = False  #: read the plan when it executes, not when it is handed over


@dataclass(slots=True)
class _Late:
    """A plan that is read and executed when somebody asks for its result."""

    device: SimulatedDevice
    plan: StepPlan
    as_given: str

    def result(self) -> StepResult:
        if repr(self.plan) != self.as_given:
            self.device.metadata_mismatches += 1
        return self.device.run(self.plan)


@dataclass(frozen=True, slots=True)
class _Done:
    """A plan that was executed at once."""

    outcome: StepResult | InjectedFailure

    def result(self) -> StepResult:
        if isinstance(self.outcome, InjectedFailure):
            raise self.outcome
        return self.outcome


@dataclass(slots=True)
class Facts:
    """What the test knows of a request and the device cannot tell from the plan."""

    namespace: int = 0
    sample_index: int = 0
    script: Sequence[int] = field(default_factory=tuple[int, ...])  #: forced outputs, from output 0
    grammar: Grammar | None = None
    accept: list[int] = field(
        default_factory=list[int]
    )  #: how many drafts are to be right, verification by verification
    num_nans: list[int] = field(default_factory=list[int])  #: reported for each sampled token, while there are any


#: Writes keys and values from outside into a row's blocks; returns how many leading tokens are good.
Fetch: TypeAlias = Callable[[str, Sequence[int], Place], int]


def _nothing_outside(_request_id: str, _blocks: Sequence[int], _place: Place) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Outside:
    """Where the device gets what it did not compute."""

    fetch: Fetch = _nothing_outside
    fetch_encoding: FetchEncoding = no_encodings


class SimulatedDevice:
    """Keeps (token, position, namespace) in every slot; the next token is a hash of what it reads through the table."""

    def __init__(
        self,
        memory: SimulatedMemory,
        nastiness: Nastiness,
        num_drafts: int = 0,
        outside: Outside = Outside(),
        sight: Sight = Sight(),  # noqa: B008 - frozen
    ) -> None:
        self._sight: Final = sight
        self._fetch: Final = outside.fetch
        self.encoder: Final = SimulatedEncoder(outside.fetch_encoding)
        self.num_drafts: Final = num_drafts
        self.memory: Final = memory
        self.metadata_mismatches = 0
        self.facts: Final[dict[str, Facts]] = {}
        self._nastiness: Final = nastiness
        self._rows: Final[dict[str, Row]] = {}
        self._fail_next = False

    @property
    def about_to_fail(self) -> bool:
        return self._fail_next

    @property
    def num_rows(self) -> int:
        """Rows whose state is held."""
        return len(self._rows)

    def fail_next(self) -> None:
        """The next step that executes raises ``InjectedFailure``."""
        self._fail_next = True

    def submit(self, plan: StepPlan) -> PendingStep:
        if self._nastiness.late_metadata:
            return _Late(self, plan, repr(plan))
        try:
            return _Done(self.run(plan))
        except InjectedFailure as failure:
            return _Done(failure)

    def close(self) -> None:
        self._rows.clear()

    def run(self, plan: StepPlan) -> StepResult:
        """Execute a plan in the order that the contract gives."""
        return self.begin(plan).result()

    def begin(self, plan: StepPlan) -> StepWork:
        """All of a plan but its rows: those are computed by who gets the work, in any order."""
        self.memory.begin_step()
        self._update_rows(plan)
        self.encoder.drop(plan.encoder_drops)
        if self._fail_next:
            self._fail_next = False
            self._lose_samples(plan, range(len(plan.ids)))
            raise InjectedFailure(f"step {plan.step} was told to fail")
        self.memory.poison(plan.zeroes)
        for op in plan.kv_ops:
            self.memory.move(op.kind, op.pairs)
        lost = self._load(plan)
        encoder_lost = self.encoder.run(plan)
        for row, good in self._rows_without(encoder_lost, plan).items():
            lost[row] = min(good, lost.get(row, good))  # both may be missing: the prefix and an encoding behind it
        self._lose_samples(plan, lost)
        self._encode_sources(plan)
        jobs = [self._job(plan, at) for at in range(len(plan.ids)) if at not in lost]
        if self._nastiness.reverse_rows:
            jobs.reverse()
        return StepWork(self, plan, jobs, Lost(lost, encoder_lost))

    def _job(self, plan: StepPlan, at: int) -> Job:
        name = plan.ids[at]
        return Job(
            at, self._rows[name], name, plan.starts[at], plan.counts[at], plan.samples[at],
            plan.drafts.get(name, ()), plan.masks.get(name, ()), name in plan.pools,
        )  # fmt: skip

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
        return [self.memory.read([block], 0, self.memory.block_size) for block in reads]

    def _load(self, plan: StepPlan) -> dict[int, int]:
        """Fetch what lies outside; by row, how many leading tokens are good where some are not."""
        lost: dict[int, int] = {}
        for load in plan.loads:
            place = Place((), load.first, load.num_tokens)
            good = self._fetch(load.id, self._rows[load.id].tables[0], place)
            if good < load.num_tokens:
                lost[plan.ids.index(load.id)] = load.first + good
        return lost

    def _encode_sources(self, plan: StepPlan) -> None:
        """Into the cross blocks of rows that enter with a source."""
        for state in plan.entered:
            slots = source_slots(state.source, self.facts[state.id].namespace)
            for at, slot in enumerate(slots):
                self.memory.write(state.cross[at // self.memory.block_size], at % self.memory.block_size, slot)

    def _namespace(self, row: Row) -> int:
        """What every slot of a row is marked with: whose it is, and what is read through the cross table."""
        state = row.state
        namespace = self.facts[state.id].namespace
        if not state.num_source_tokens:
            return namespace
        return coloured(namespace, self.memory.read(state.cross, 0, state.num_source_tokens))

    def _rows_without(self, missing: Sequence[ContentId], plan: StepPlan) -> dict[int, int]:
        """Rows that need an encoding which is missing, and how far they could go without."""
        without: dict[int, int] = {}
        for at, (row_id, start, count) in enumerate(zip(plan.ids, plan.starts, plan.counts, strict=True)):
            first = self.encoder.needs(self._rows[row_id].state.media, start, start + count, missing)
            if first is not None:
                without[at] = start  # nothing of the row is computed
        return without

    def _update_rows(self, plan: StepPlan) -> None:
        for row_id in plan.retired:
            del self._rows[row_id]
        for state in plan.entered:
            if state.id in self._rows:
                raise ValueError(f"row {state.id!r} enters but was never retired")
            self._rows[state.id] = Row(state, list(state.token_ids), list(map(list, state.tables)))
        for update in plan.updates:
            self._update_table(update)

    def _update_table(self, update: TableUpdate) -> None:
        blocks = self._rows[update.id].tables[update.group]
        if update.first > len(blocks):
            raise ValueError(f"table of {update.id!r} has {len(blocks)} entries, update begins at {update.first}")
        blocks[update.first : update.first + len(update.blocks)] = update.blocks

    def _lose_samples(self, plan: StepPlan, rows: Iterable[int]) -> None:
        """Steps planned ahead go on from tokens that were never sampled: whatever they compute, nobody wants it."""
        for at in rows:
            if plan.samples[at]:
                self._rows[plan.ids[at]].tokens.append(POISON.token)

    def pool(self, job: Job) -> int:
        """One number of the whole prompt, read through the block table."""
        end = job.start + job.count
        return pooled_value(self._seen(job.row, end - 1, end))

    def logprobs(self, job: Job, sampled: Sequence[int]) -> RowLogprobs:
        """What the row's request asked for: of what was sampled, and of the prompt tokens behind its positions."""
        row, params, end = job.row, job.row.state.params, job.start + job.count
        of_sampled: list[TokenLogprobs] = []
        if params.logprobs is not None:
            known = end - len(job.drafts)
            for nth, token in enumerate(sampled):
                last = known + (nth if job.samples == 1 else 0)
                of_sampled.append(token_logprobs(self._seen(row, last - 1, last), token, params.logprobs))
        of_prompt: list[TokenLogprobs] = []
        if params.prompt_logprobs is not None:
            for at in range(job.start, min(end, row.state.num_prompt_tokens - 1)):
                seen = self._seen(row, at, at + 1)
                of_prompt.append(token_logprobs(seen, row.tokens[at + 1], params.prompt_logprobs))
        return RowLogprobs(tuple(of_sampled), tuple(of_prompt))

    def compute(self, job: Job) -> tuple[int, ...]:
        row = job.row
        namespace = self._namespace(row)
        size = self.memory.block_size
        media = row.state.media
        tokens = with_inputs([*row.tokens, *job.drafts], media)
        if self._sight.windowed:  # otherwise what is wrong here is wrong for the next sample too
            expected = self._sight.seen(tokens, job.start, job.start, namespace)
            row.spoilt |= self._seen(row, job.start, job.start) != expected
        for group, blocks in enumerate(row.tables):
            for position in range(job.start, job.start + job.count):
                token = self.encoder.token(media, position, tokens[position]) if media else tokens[position]
                slot = self._sight.slot(group, token, position, namespace)
                self.memory.write(blocks[position // size], position % size, slot)
        if not job.samples:
            return ()
        if job.samples > 1:
            return self._first_samples(row, job)
        drawn = self._verify(row, job)
        row.tokens.extend(drawn)
        return drawn

    def _first_samples(self, row: Row, job: Job) -> tuple[int, ...]:
        """Several samples of a prompt that was just computed; the row goes on with the first."""
        drawn = tuple(self._draw(row, job, job.start + job.count, nth, 0) for nth in range(job.samples))
        row.tokens.append(drawn[0])
        return drawn

    def _verify(self, row: Row, job: Job) -> tuple[int, ...]:
        """The drafts that are what would have been sampled anyway, and one token more."""
        known = job.start + job.count - len(job.drafts)
        drawn: list[int] = []
        for nth in range(len(job.drafts) + 1):
            drawn.append(self._draw(row, job, known + nth, 0, nth))
            if nth == len(job.drafts) or drawn[-1] != job.drafts[nth]:
                break
        return tuple(drawn)

    def _draw(self, row: Row, job: Job, num_tokens: int, nth: int, at: int) -> int:
        """The token after the first ``num_tokens``, read through the block table."""
        context = self._seen(row, num_tokens - 1, num_tokens)
        if row.spoilt:
            context.append(POISON)
        output_index = num_tokens - row.state.num_prompt_tokens
        draw = Draw(row.state.params.seed, row.state.sample_index + nth, output_index)
        script = self.script_of(job.row_id, nth)
        if output_index < len(script):
            return script[output_index]
        return next_token(context, draw, job.masks[at] if job.masks else None)

    def _seen(self, row: Row, position: int, end: int) -> list[Slot]:
        """What the token at ``position`` sees up to position ``end``, through the tables of all groups."""
        context: list[Slot] = []
        for group, blocks in enumerate(row.tables):
            context += self.memory.read(blocks, self._sight.first(group, position), end)
        return context

    def guess(self, job: Job) -> tuple[int, ...]:
        """Drafts of which the first few are right, as the test says or else by the text itself."""
        row, row_id, facts = job.row, job.row_id, self.facts[job.row_id]
        namespace = self._namespace(row)
        tokens = with_inputs(row.tokens, row.state.media)
        script = self.script_of(row_id, 0)
        right = facts.accept.pop(0) if facts.accept else hash(tuple(row.tokens)) % (self.num_drafts + 1)
        guesses: list[int] = []
        for nth in range(self.num_drafts):
            output_index = len(tokens) - row.state.num_prompt_tokens
            if output_index < len(script):
                token = script[output_index]
            else:
                token = next_token(
                    self._sight.of(tokens, namespace),
                    Draw(row.state.params.seed, row.state.sample_index, output_index),
                    None,
                )
            guesses.append(token if nth < right else (token + 1) % VOCABULARY)
            tokens.append(guesses[-1])
        return tuple(guesses)

    def script_of(self, row_id: str, nth: int) -> Sequence[int]:
        facts = self.facts.get(f"{row_id}#{nth}" if nth else row_id)
        return facts.script if facts else ()
