"""Keys, values and queries of some sequences, and where in the pool they are. All on the host, all made from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import StepBatch
from baseboard_conformance.layouts import Row
from baseboard_conformance.naive import naive_attention
from baseboard_conformance.numerics import Array, rounded
from baseboard_conformance.oracle import Tensors, largest_logit, solve, visible
from baseboard_conformance.scenario import Geometry, blocks_of
from baseboard_conformance.verdict import Yardstick


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Row ``i`` of the layout has ``tensors[i]`` and lies in the blocks ``tables[i]``."""

    geometry: Geometry
    tensors: tuple[Tensors, ...]
    tables: tuple[NDArray[np.int64], ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.geometry.layout.rows

    @property
    def real(self) -> NDArray[np.bool_]:
        """Which tokens of the step are no padding: bool ``[T]``."""
        return np.array([not row.padding for row in self.rows for _ in range(row.query_len)], dtype=bool)

    def yardstick(self) -> Yardstick:
        """Of the tokens that are no padding, ``[T', H, Dv]``."""
        spec, dtype = self.geometry.attention, self.geometry.kv.dtype
        solutions = [solve(tensors, spec, seen) for tensors, seen in self._sequences()]
        return Yardstick(
            truth=np.concatenate([solution.out for solution in solutions]),
            naive=self.solve(lambda tensors, seen: naive_attention(tensors, spec, seen, dtype)),
            dtype=dtype,
            spread=np.concatenate([solution.spread for solution in solutions]),
            largest_logit=max(largest_logit(tensors, spec) for tensors in self.tensors),
        )

    def solve(self, method: Callable[[Tensors, NDArray[np.bool_]], Array]) -> Array:
        """What ``method`` makes of the sequences that are no padding, given what each query sees."""
        return np.concatenate([method(tensors, seen) for tensors, seen in self._sequences()])

    def _sequences(self) -> Iterator[tuple[Tensors, NDArray[np.bool_]]]:
        window, causal = self.geometry.attention.sliding_window, self.geometry.causal
        for row, tensors in zip(self.rows, self.tensors, strict=True):
            if not row.padding:
                yield tensors, visible(len(tensors.query), len(tensors.key), window, causal)

    def new_rows(self, name: str) -> Array:
        """Keys or values of the step's own tokens, ``[T, Hkv, D]``."""
        parts = zip(self.rows, self.tensors, strict=True)
        return np.concatenate([getattr(tensors, name)[-row.query_len :] for row, tensors in parts])

    def slots(self, row: int, begin: int, end: int) -> NDArray[np.int64]:
        """Slots of the row's tokens from position ``begin`` up to ``end``."""
        positions, size = np.arange(begin, end), self.geometry.kv.block_size
        return self.tables[row][positions // size] * size + positions % size

    def place(self, token: int) -> tuple[int, int]:
        """Sequence and position of the token that is number ``token`` of those that are no padding."""
        for index, row in enumerate(self.rows):
            if row.padding:
                continue
            if token < row.query_len:
                return index, row.seq_len - row.query_len + token
            token -= row.query_len
        raise IndexError(token)


def make_problem(geometry: Geometry, family: str, seed: int) -> Problem:
    """Sequences with random tensors of a ``family``, in blocks in random order."""
    rng = np.random.default_rng(seed)
    tables = _tables(geometry, rng)
    make = FAMILIES[family]
    tensors: list[Tensors] = []
    shared = geometry.layout.shared_blocks * geometry.kv.block_size
    common: Tensors | None = None
    for row in geometry.layout.rows:
        fresh = make(geometry, row, rng)
        if shared and common is not None:
            fresh = Tensors(
                fresh.query, _prefixed(fresh.key, common.key, shared), _prefixed(fresh.value, common.value, shared)
            )
        common = fresh if common is None else common
        dtype = geometry.kv.dtype
        tensors.append(Tensors(*(rounded(x, dtype) for x in (fresh.query, fresh.key, fresh.value))))
    return Problem(geometry, tuple(tensors), tables)


def _prefixed(own: Array, common: Array, length: int) -> Array:
    count = min(length, len(own), len(common))
    return np.concatenate([common[:count], own[count:]])


def _tables(geometry: Geometry, rng: np.random.Generator) -> tuple[NDArray[np.int64], ...]:
    spare = rng.permutation(np.arange(1, geometry.num_blocks))
    shared, spare = spare[: geometry.layout.shared_blocks], spare[geometry.layout.shared_blocks :]
    tables: list[NDArray[np.int64]] = []
    for row in geometry.layout.rows:
        need = blocks_of(row.seq_len, geometry.kv.block_size)
        own, spare = np.split(spare, [max(0, need - len(shared))])
        if len(own) > 1 and own[-1] == own.max():
            # Never in ascending order to the last: who assumes that reads another last block.
            own = own[::-1]
        tables.append(np.zeros(need, np.int64) if row.padding else np.concatenate([shared, own])[:need])
    return tuple(tables)


def _normal(geometry: Geometry, row: Row, rng: np.random.Generator, *, size: float = 1.0) -> Tensors:
    a, kv = geometry.attention, geometry.kv
    return Tensors(
        size * rng.standard_normal((row.query_len, a.num_heads, a.head_size)),
        size * rng.standard_normal((row.seq_len, kv.num_kv_heads, kv.head_size)),
        rng.standard_normal((row.seq_len, kv.num_kv_heads, kv.head_size_v)),
    )


def _gauss(geometry: Geometry, row: Row, rng: np.random.Generator) -> Tensors:
    return _normal(geometry, row, rng)


def _extreme(geometry: Geometry, row: Row, rng: np.random.Generator) -> Tensors:
    """Logits far beyond what exp takes in float32."""
    return _normal(geometry, row, rng, size=6.0)


def _needle(geometry: Geometry, row: Row, rng: np.random.Generator) -> Tensors:
    """Each query head is locked on one key that it sees: a wrong block, key or head changes the result altogether."""
    made, a = _normal(geometry, row, rng), geometry.attention
    seen = visible(row.query_len, row.seq_len, a.sliding_window, geometry.causal)
    key = made.key * np.sqrt(a.head_size) / np.linalg.norm(made.key, axis=-1, keepdims=True)
    scale = abs(a.scale) or 1.0
    query = np.empty_like(made.query)
    for i in range(row.query_len):
        sighted = np.flatnonzero(seen[i])
        # The first and the last visible key are where masks go wrong.
        targets = np.concatenate([sighted[[0, -1]], rng.choice(sighted, a.num_heads)])[: a.num_heads]
        for h, target in enumerate(rng.permutation(targets)):
            query[i, h] = key[target, h // (a.num_heads // a.num_kv_heads)] * 20.0 / (scale * a.head_size)
    return Tensors(query, key, made.value)


def _onehot(geometry: Geometry, row: Row, rng: np.random.Generator) -> Tensors:
    """All keys count alike, and every value marks its position: the result shows which keys were seen."""
    made = _normal(geometry, row, rng)
    value = np.zeros_like(made.value)
    positions = np.arange(row.seq_len)
    value[positions, :, positions % value.shape[2]] = 1.0
    return Tensors(made.query, np.zeros_like(made.key), value)


#: How the tensors of a sequence are drawn.
FAMILIES: Final[Mapping[str, Callable[[Geometry, Row, np.random.Generator], Tensors]]] = {
    "gauss": _gauss,
    "needle": _needle,
    "onehot": _onehot,
    "extreme": _extreme,
}


def step_batch(problem: Problem, rows: tuple[Row, ...] | None = None) -> StepBatch:
    """The step's index arrays; with ``rows`` those of another step of the same sequences."""
    rows = problem.rows if rows is None else rows
    counts = np.array([row.query_len for row in rows])
    width = max(len(table) for table in problem.tables)
    tables = np.zeros((len(rows), width), np.int32)
    for index, table in enumerate(problem.tables):
        tables[index, : len(table)] = table
    spans = [(i, row.seq_len - row.query_len, row.seq_len) for i, row in enumerate(rows)]
    layout = type(problem.geometry.layout)(rows)
    return StepBatch(
        query_start_loc=np.concatenate([[0], counts.cumsum()]).astype(np.int32),
        seq_lens=np.array([row.seq_len for row in rows], np.int32),
        block_tables=tables,
        slot_mapping=np.concatenate([problem.slots(*span) for span in spans]),
        positions=np.concatenate([np.arange(begin, end) for _, begin, end in spans]),
        num_decodes=layout.num_decodes,
        max_query_len=int(counts.max()),
        max_seq_len=max(row.seq_len for row in rows),
        causal=problem.geometry.causal,
    )
