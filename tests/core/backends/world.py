"""Random sequences in a paged pool, run through a backend's hooks and compared with the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import AttentionSpec, KVCache, KVCacheSpec, StepBatch
from baseboard.kit.batch_checks import check_batch
from baseboard.kit.dtypes import torch_dtype
from core.backends.naive import naive_attention
from core.backends.oracle import attention
from core.backends.tolerance import assert_close

POISONS = (float("nan"), float("inf"), 1e4)


@dataclass
class Row:
    """A sequence of the step: its last ``query_len`` of ``seq_len`` tokens are computed."""

    query_len: int
    seq_len: int
    padding: bool = False  #: a dummy of the null block


@dataclass
class World:
    """Keys, values and queries of some sequences, and where in the pool they are."""

    spec: AttentionSpec
    kv: KVCacheSpec
    rows: Sequence[Row]
    num_decodes: int = 0
    causal: bool = True
    seed: int = 0
    shared_blocks: int = 0  #: leading blocks that all sequences share
    tables: list[NDArray[np.int32]] = field(init=False)
    query: list[torch.Tensor] = field(init=False)
    key: list[torch.Tensor] = field(init=False)
    value: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        rng = np.random.default_rng(self.seed)
        spare = rng.permutation(np.arange(1, self.num_blocks))
        size, kv, spec = self.kv.block_size, self.kv, self.spec

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(torch_dtype(kv.dtype))

        shared, spare = spare[: self.shared_blocks], spare[self.shared_blocks :]
        prefix = size * self.shared_blocks
        common = random(prefix, kv.num_kv_heads, kv.head_size), random(prefix, kv.num_kv_heads, kv.head_size_v)
        self.tables, self.query, self.key, self.value = [], [], [], []
        for row in self.rows:
            need = -(-row.seq_len // size)
            own, spare = np.split(spare, [max(0, need - self.shared_blocks)])
            table = np.zeros(need) if row.padding else np.concatenate([shared, own])[:need]
            self.tables.append(table.astype(np.int32))
            self.query.append(random(row.query_len, spec.num_heads, spec.head_size))
            for name, part in (("key", common[0]), ("value", common[1])):
                fresh = random(row.seq_len, *part.shape[1:])
                fresh[: min(prefix, row.seq_len)] = part[: row.seq_len]
                getattr(self, name).append(fresh)

    @property
    def num_blocks(self) -> int:
        return 5 + self.shared_blocks + sum(-(-row.seq_len // self.kv.block_size) for row in self.rows)

    def slots(self, index: int, begin: int, end: int) -> NDArray[np.int64]:
        positions = np.arange(begin, end)
        size = self.kv.block_size
        return self.tables[index][positions // size].astype(np.int64) * size + positions % size

    def batch(self, rows: Sequence[Row] | None = None) -> StepBatch:
        """The step; or, with the same sequences at other lengths, another step of them."""
        rows = self.rows if rows is None else rows
        counts = np.array([row.query_len for row in rows])
        lengths = np.array([row.seq_len for row in rows], dtype=np.int32)
        tables = np.zeros((len(rows), max((len(t) for t in self.tables), default=0)), np.int32)
        for index, table in enumerate(self.tables):
            tables[index, : len(table)] = table
        spans = [(i, r.seq_len - r.query_len, r.seq_len) for i, r in enumerate(rows)]
        empty = [np.zeros(0, np.int64)]
        batch = StepBatch(
            query_start_loc=np.concatenate([[0], counts.cumsum()]).astype(np.int32),
            seq_lens=lengths,
            block_tables=tables,
            slot_mapping=np.concatenate(empty + [self.slots(*span) for span in spans]),
            positions=np.concatenate(empty + [np.arange(*span[1:]) for span in spans]),
            num_decodes=self.num_decodes,
            max_query_len=int(counts.max(initial=0)),
            max_seq_len=int(lengths.max(initial=0)),
            causal=self.causal,
        )
        check_batch(batch, self.num_blocks, self.kv.block_size)
        return batch

    def poisoned_cache(self, backend: Any, poison: float) -> KVCache:
        """A cache full of ``poison`` but for what earlier steps of the sequences have written."""
        cache = backend.allocate_kv_cache(self.kv, self.num_blocks)
        for plane in cache.planes:
            plane.view(torch_dtype(self.kv.dtype)).fill_(poison)
        kernel = backend.attention_kernel(self.spec, self.kv)
        for index, row in enumerate(self.rows):
            done = row.seq_len - row.query_len
            if done and not row.padding:
                one = self.only(index, Row(done, done))
                metadata = backend.build_attention_metadata(one.batch(), cache)
                kernel.write(self.key[index][:done], self.value[index][:done], cache.layer(0), metadata)
        return cache

    def only(self, index: int, row: Row) -> World:
        """One of the sequences, at the same place of the same pool."""
        one = _OneOf(self.spec, self.kv, [row], int(row.query_len == 1), self.causal)
        one.pool = self.num_blocks
        one.tables = [self.tables[index]]
        return one

    def run(self, backend: Any, poison: float = 0.0, out: torch.Tensor | None = None) -> torch.Tensor:
        """Write and attend: ``[T, H, Dv]``."""
        cache = self.poisoned_cache(backend, poison)
        return self.step(backend, cache, out)

    def step(self, backend: Any, cache: KVCache, out: torch.Tensor | None = None) -> torch.Tensor:
        kernel = backend.attention_kernel(self.spec, self.kv)
        metadata = backend.build_attention_metadata(self.batch(), cache)
        kernel.write(self._new(self.key), self._new(self.value), cache.layer(0), metadata)
        return kernel.attend(torch.cat(self.query), cache.layer(0), metadata, out)

    def _new(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """What the step adds to each sequence; NaN for those that are padding."""
        parts = [tensor[-row.query_len :] for row, tensor in zip(self.rows, tensors, strict=True)]
        return torch.cat(
            [part * torch.nan if row.padding else part for row, part in zip(self.rows, parts, strict=True)]
        )

    @property
    def real(self) -> torch.Tensor:
        """Which tokens of the step are no padding: bool ``[T]``."""
        return torch.tensor([not row.padding for row in self.rows for _ in range(row.query_len)], dtype=torch.bool)

    def check(self, got: torch.Tensor) -> None:
        """Compare the rows that are no padding with the oracle."""
        truth, naive = [], []
        for index, row in enumerate(self.rows):
            if not row.padding:
                query, key, value = self.query[index], self.key[index], self.value[index]
                q, k, v = (tensor.double().numpy() for tensor in (query, key, value))
                truth.append(attention(q, k, v, self.spec, self.causal))
                naive.append(naive_attention(query, key, value, self.spec, self.causal))
        assert_close(got[self.real], np.concatenate(truth), torch.cat(naive))


class _OneOf(World):
    """A world for the batch of one sequence of another."""

    pool: int

    def __post_init__(self) -> None:
        self.query = self.key = self.value = []

    @property
    def num_blocks(self) -> int:
        return self.pool


def make_world(
    rows: Sequence[Row],
    dtype: str = "float32",
    heads: tuple[int, int] = (4, 2),
    head_size: int = 16,
    block_size: int = 16,
    **options: Any,
) -> World:
    """A world with the usual scale; ``options`` go to the world or, if it has no such field, to its attention."""
    own = {name: options.pop(name) for name in ("num_decodes", "causal", "seed", "shared_blocks") if name in options}
    value_size = options.pop("head_size_v", head_size)
    spec = AttentionSpec(heads[0], heads[1], head_size, head_size**-0.5, **options)
    kv = KVCacheSpec(1, heads[1], head_size, value_size, dtype, block_size)  # pyright: ignore[reportArgumentType]
    return World(replace(spec), kv, rows, **own)
