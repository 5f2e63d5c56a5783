"""Decode steps that a backend records and replays, as the core has them: padded to a size, in tensors that never move.

A model of two groups of layers, each with blocks and keys of its own: what a replay must exchange, it must exchange for
both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from baseboard.contract import AttentionKernel, Graph, GraphRunner, KVCache, LayerKind, StepBatch
from baseboard_conformance.attending import prepare
from baseboard_conformance.bench import Bench, require
from baseboard_conformance.case import NotObservable
from baseboard_conformance.guarded import Guarded, guard
from baseboard_conformance.layouts import Layout, Row
from baseboard_conformance.numerics import Array
from baseboard_conformance.oracle import Tensors
from baseboard_conformance.problem import Problem, make_problem, step_batch
from baseboard_conformance.scenario import Geometry, Scenario, blocks_of, geometry

if TYPE_CHECKING:
    import torch

#: Numbers of sequences for which steps are recorded.
SIZES: Final = (2, 4, 8)
#: Tokens that each sequence can be given by decode steps.
STEPS: Final = 6
GROUPS: Final = 2


def runner_of(bench: Bench, kinds: Sequence[LayerKind]) -> GraphRunner:
    """What records steps of such layers. Raises ``NotObservable`` where nothing does."""
    hook = getattr(bench.hook, "graph_runner", None)
    runner = None if hook is None else hook(layers=tuple(kinds))
    if runner is None:
        raise NotObservable("the backend records no steps: each is told kernel by kernel")
    require(
        callable(getattr(runner, "capture", None)), f"graph_runner gave {runner!r}; right is a GraphRunner, or None"
    )
    return runner


def decoding(scenario: Scenario, bench: Bench) -> Geometry:
    """Sequences with room for ``STEPS`` more tokens, which take them over the edges of blocks."""
    b = geometry(scenario, bench.can).kv.block_size
    past = (1, max(1, b - 2), b - 1 or 1, b, 2 * b + 3)
    return geometry(scenario, bench.can).with_layout(Layout(tuple(Row(STEPS, n + STEPS) for n in past)))


@dataclass(frozen=True, slots=True, eq=False)
class Buffers:
    """One group's tensors of a recorded step: ``[size, heads, head size]`` each, always at the same place."""

    query: Guarded
    key: Guarded
    value: Guarded
    out: Guarded

    def fill(self, tensors: tuple[torch.Tensor, ...]) -> None:
        """Enqueue this step's values; the result becomes NaN, so that what is not written shows."""
        for buffer, values in zip((self.query, self.key, self.value), tensors, strict=True):
            buffer.inner.copy_(values)
        self.out.inner.fill_(float("nan"))


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """One group: what its sequences hold in all, where they lie, and what computes them."""

    whole: Problem  #: with the tokens of all steps
    cache: KVCache
    kernel: AttentionKernel

    def step(self, active: Sequence[int], done: Sequence[int]) -> Problem:
        """The next token of the ``active`` sequences, of which ``done`` steps were computed so far."""
        g, parts = self.whole.geometry, [self._sequence(i, done[i] + 1) for i in active]
        layout = Layout(tuple(Row(1, len(part.key)) for part in parts))
        tables = [
            self.whole.tables[i][: blocks_of(len(p.key), g.kv.block_size)] for i, p in zip(active, parts, strict=True)
        ]
        return Problem(g.with_layout(layout), tuple(parts), tuple(tables))

    def _sequence(self, index: int, steps: int) -> Tensors:
        full, row = self.whole.tensors[index], self.whole.rows[index]
        length = row.seq_len - row.query_len + steps
        return Tensors(full.query[steps - 1 : steps], full.key[:length], full.value[:length])


def padded(problem: Problem, size: int, width: int) -> StepBatch:
    """The step's index arrays with sequences of one token, kept in the null block, up to ``size`` of them."""
    real, count = step_batch(problem), len(problem.rows)
    tables = np.zeros((size, width), np.int32)
    tables[:count, : real.block_tables.shape[1]] = real.block_tables
    return _decode_batch(
        np.concatenate([real.seq_lens, np.ones(size - count, np.int32)]),
        tables,
        np.concatenate([real.slot_mapping, np.arange(size - count, dtype=np.int64)]),
    )


def nothing(size: int, width: int) -> StepBatch:
    """Padding alone, as steps are recorded: kept in the first blocks, which nobody owns yet."""
    return _decode_batch(np.ones(size, np.int32), np.zeros((size, width), np.int32), np.arange(size, dtype=np.int64))


def _decode_batch(lengths: np.ndarray, tables: np.ndarray, slots: np.ndarray) -> StepBatch:
    size = len(lengths)
    return StepBatch(
        query_start_loc=np.arange(size + 1, dtype=np.int32),
        seq_lens=lengths,
        block_tables=tables,
        slot_mapping=slots,
        positions=lengths.astype(np.int64) - 1,
        num_decodes=size,
        max_query_len=1,
        max_seq_len=int(lengths.max()),
    )


@dataclass(slots=True, eq=False)
class Replaying:
    """A backend on which decode steps of several sizes are recorded, and sequences that wait to be decoded."""

    bench: Bench
    groups: tuple[Layers, ...]
    graphs: dict[int, Graph] = field(default_factory=dict[int, Graph])
    buffers: dict[int, tuple[Buffers, ...]] = field(default_factory=dict[int, tuple[Buffers, ...]])
    done: list[int] = field(default_factory=list[int])  #: steps that each sequence has made

    @property
    def width(self) -> int:
        """Columns of the block tables: those of the longest sequence, in every step."""
        return max(len(table) for group in self.groups for table in group.whole.tables)

    def metadata(self, batches: Sequence[StepBatch]) -> list[object]:
        build = self.bench.hook.build_attention_metadata
        return [build(batch=batch, cache=group.cache) for batch, group in zip(batches, self.groups, strict=True)]

    def compute(self, buffers: Sequence[Buffers], metadata: Sequence[object]) -> None:
        """The step, kernel by kernel: what is recorded."""
        for group, own, numbers in zip(self.groups, buffers, metadata, strict=True):
            layer = group.cache.layer(0)
            group.kernel.write(own.key.inner, own.value.inner, layer, numbers)
            group.kernel.attend(own.query.inner, layer, numbers, own.out.inner)

    def record(self, runner: GraphRunner, size: int) -> None:
        buffers = tuple(_buffers(self.bench, group, size) for group in self.groups)
        metadata = self.metadata([nothing(size, self.width) for _ in self.groups])
        self.graphs[size] = runner.capture(metadata=metadata, compute=partial(self.compute, buffers, metadata))
        self.buffers[size] = buffers

    def load(self) -> None:
        """Write what the sequences hold before their first step."""
        for group in self.groups:
            prepare(self.bench, group.whole, lambda _bench, _problem, cache=group.cache: cache)
        self.done = [0] * len(self.groups[0].whole.rows)

    def plan(self, active: Sequence[int], size: int) -> Planned:
        """The next token of these sequences, in this order, as a step of ``size``; its inputs are on the device."""
        problems = tuple(group.step(active, self.done) for group in self.groups)
        for index in active:
            self.done[index] += 1
        return Planned(
            size,
            problems,
            tuple(padded(problem, size, self.width) for problem in problems),
            tuple(_inputs(self.bench, problem, size) for problem in problems),
        )

    def replay(self, steps: Sequence[Planned]) -> list[Replayed]:
        """One step after the other, by replay, and no wait in between."""
        self.bench.hook.synchronize()
        return [self._replay(step) for step in steps]

    def _replay(self, step: Planned) -> Replayed:
        buffers = self.buffers[step.size]
        for own, inputs in zip(buffers, step.inputs, strict=True):
            own.fill(inputs)
        self.graphs[step.size].replay(metadata=self.metadata(step.batches))
        return Replayed(step, tuple(own.out.inner.clone() for own in buffers))

    def eagerly(self, step: Planned) -> tuple[Array, ...]:
        """The step's results, ``[S, H, Dv]`` a group, told kernel by kernel."""
        buffers = tuple(_buffers(self.bench, group, step.size) for group in self.groups)
        for own, inputs in zip(buffers, step.inputs, strict=True):
            own.fill(inputs)
        self.compute(buffers, self.metadata(step.batches))
        return tuple(
            self.bench.host(own.out.inner)[: len(problem.rows)]
            for own, problem in zip(buffers, step.problems, strict=True)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A step to come, for each group of layers; ``inputs`` are query, key and value with padding."""

    size: int
    problems: tuple[Problem, ...]
    batches: tuple[StepBatch, ...]
    inputs: tuple[tuple[torch.Tensor, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """A step that was replayed; ``outs`` ``[size, H, Dv]`` are the groups' results, once the device has made them."""

    step: Planned
    outs: tuple[torch.Tensor, ...]


def record_steps(scenario: Scenario, bench: Bench) -> Replaying:
    """A model with steps of all sizes recorded, the largest first, and its sequences as they are before the first."""
    made = decoding(scenario, bench)
    runner = runner_of(bench, [LayerKind(made.attention, made.kv)])
    state = unrecorded(made, bench)
    for size in sorted(SIZES, reverse=True):
        state.record(runner, size)
    state.load()
    return state


def unrecorded(made: Geometry, bench: Bench) -> Replaying:
    """The same model and sequences, of which nothing is recorded or written yet."""
    kernel = bench.hook.attention_kernel(attention=made.attention, kv=made.kv)
    groups = [
        Layers(
            make_problem(made, "gauss", bench.seed + number),
            bench.hook.allocate_kv_cache(spec=made.kv, num_blocks=2 * made.num_blocks),
            kernel,
        )
        for number in range(GROUPS)
    ]
    return Replaying(bench, tuple(groups))


def _buffers(bench: Bench, group: Layers, size: int) -> Buffers:
    attention, kv = group.whole.geometry.attention, group.whole.geometry.kv
    shapes = {
        "query": (size, attention.num_heads, kv.head_size),
        "key": (size, kv.num_kv_heads, kv.head_size),
        "value": (size, kv.num_kv_heads, kv.head_size_v),
        "out": (size, attention.num_heads, kv.head_size_v),
    }
    made = {name: guard(bench, name, bench.tensor(np.zeros(shape), kv.dtype)) for name, shape in shapes.items()}
    return Buffers(**made)


def _inputs(bench: Bench, problem: Problem, size: int) -> tuple[torch.Tensor, ...]:
    """Query, key and value on the device; what padding brings along is NaN."""
    arrays = (np.concatenate([t.query for t in problem.tensors]), problem.new_rows("key"), problem.new_rows("value"))
    pads = [np.full((size - len(array), *array.shape[1:]), np.nan) for array in arrays]
    whole = [np.concatenate(pair) for pair in zip(arrays, pads, strict=True)]
    return tuple(bench.tensor(array, problem.geometry.kv.dtype) for array in whole)


def moved(group: Layers, rng: np.random.Generator) -> tuple[Layers, np.ndarray]:
    """The group with its sequences in other blocks, and the copies that take them there, int64 ``[P, 2]``."""
    old = np.concatenate(group.whole.tables)
    spare = np.setdiff1d(np.arange(1, group.cache.num_blocks), old)
    new = rng.permutation(spare)[: len(old)]
    places = dict(zip(old.tolist(), new.tolist(), strict=True))
    tables = tuple(np.array([places[block] for block in table.tolist()], np.int64) for table in group.whole.tables)
    return replace(group, whole=replace(group.whole, tables=tables)), np.stack([old, new], axis=1)
