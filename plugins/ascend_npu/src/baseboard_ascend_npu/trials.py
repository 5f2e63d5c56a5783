"""Small computations on an open backend, compared with the gathering way: what ``check`` asks with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from baseboard.contract import AttentionSpec, KVCache, KVCacheSpec, StepBatch
from baseboard_ascend_npu.backend import AscendBackend
from baseboard_ascend_npu.fused import Sight
from baseboard_ascend_npu.graphs import NpuGraphRunner
from baseboard_ascend_npu.support import Way

_BLOCK: Final = 128
_REPEATS: Final = 20


@dataclass(frozen=True, slots=True)
class Sequences:
    """What a step computes: tokens of each sequence, their lengths with them, and their blocks."""

    counts: tuple[int, ...]
    lengths: tuple[int, ...]
    tables: tuple[tuple[int, ...], ...]

    def batch(self) -> StepBatch:
        counts, lengths = np.array(self.counts), np.array(self.lengths, np.int32)
        tables = np.array(self.tables, dtype=np.int32)
        rows, ends = np.repeat(np.arange(len(counts)), counts), np.cumsum(counts)
        positions = np.arange(ends[-1]) - np.repeat(ends, counts) + np.repeat(lengths, counts)
        return StepBatch(
            query_start_loc=np.concatenate([[0], ends]).astype(np.int32),
            seq_lens=lengths,
            block_tables=tables,
            slot_mapping=tables[rows, positions // _BLOCK].astype(np.int64) * _BLOCK + positions % _BLOCK,
            positions=positions.astype(np.int64),
            num_decodes=self.counts.count(1),
            max_query_len=max(self.counts),
            max_seq_len=max(self.lengths),
        )


#: Two decodes and a chunk, two blocks each.
MIXED: Final = Sequences((1, 1, 50), (200, 129, 180), ((1, 2), (3, 4), (5, 6)))
#: Their first blocks are one: the pool is smaller than all of them together.
SHARED: Final = Sequences((1, 1, 50), (200, 129, 180), ((1, 2), (1, 3), (1, 4)))
_DECODES: Final = (
    Sequences((1, 1), (200, 129), ((1, 2), (3, 4))),
    Sequences((1, 1), (17, 250), ((5, 0), (6, 1))),
)


@dataclass(frozen=True, slots=True)
class Seconds:
    """Of one call of the fused operator, by the layout of the cache."""

    rows: float  #: (blocks, block size, heads * head size): the one that is used
    heads: float  #: (blocks, heads, block size, head size)


class Trial:
    """One kind of layer, with random keys and values in a pool of six blocks beside the null block."""

    def __init__(self, backend: AscendBackend, attention: AttentionSpec) -> None:
        size, heads = attention.head_size, attention.num_kv_heads
        self._backend: Final = backend
        self._attention: Final = attention
        self._random: Final = torch.Generator().manual_seed(0)
        self._cache: Final[KVCache] = backend.allocate_kv_cache(
            KVCacheSpec(1, heads, size, size, "bfloat16", _BLOCK), 7
        )
        for plane in self._cache.planes:
            plane.view(torch.bfloat16).copy_(self._rows(plane.shape[0], plane.shape[1] // 2))

    def difference(self, way: Way, sequences: Sequences = MIXED) -> float:
        """The largest difference between ``way`` and gathering, relative to the largest value."""
        batch = sequences.batch()
        query = self._rows(batch.num_tokens, self._attention.num_heads, self._attention.head_size)
        metadata = self._backend.build_attention_metadata(batch, self._cache)
        return _relative(self._attend(way, query, metadata), self._attend(Way.GATHER, query, metadata))

    def replayed_difference(self, way: Way) -> float:
        """The same for a captured decode step, replayed with other lengths and blocks than it was captured with."""
        first = self._backend.build_attention_metadata(_DECODES[0].batch(), self._cache)
        query = self._rows(2, self._attention.num_heads, self._attention.head_size)
        out = torch.zeros_like(query)
        kernel: Any = self._backend.kernels.make(way, self._attention)

        def compute() -> None:
            out.copy_(kernel.attend(query, self._cache.layer(0), first))

        graph = NpuGraphRunner().capture([first], compute)
        differences: list[float] = []
        for sequences in (*_DECODES, _DECODES[0]):
            graph.replay([self._backend.build_attention_metadata(sequences.batch(), self._cache)])
            told = self._backend.build_attention_metadata(sequences.batch(), self._cache)
            differences.append(_relative(out.clone(), self._attend(Way.GATHER, query, told)))
        return max(differences)

    def moved_bytes_differ(self) -> bool:
        """Whether blocks that were moved to the host and back are not what they were."""
        host = self._backend.allocate_host_kv_cache(self._cache, 4)
        before = [plane.cpu() for plane in self._cache.planes]
        self._backend.swap_blocks(self._cache, host, np.array([[1, 0], [2, 1], [5, 3]])).wait()
        self._backend.swap_blocks(host, self._cache, np.array([[0, 4], [1, 6], [3, 3]])).wait()
        pairs = zip(self._cache.planes, before, strict=True)
        return any(not torch.equal(plane.cpu()[[4, 6, 3]], old[[1, 2, 5]]) for plane, old in pairs)

    def seconds_by_layout(self) -> Seconds:
        """Time of one fused call on a decode step, for either layout of one cache."""
        sequences = _DECODES[0]
        query = self._rows(2, self._attention.num_heads, self._attention.head_size)
        step: Any = self._backend.build_attention_metadata(sequences.batch(), self._cache)
        call: Any = self._backend.kernels.fused_call(self._attention)
        layer: Any = self._cache.layer(0)
        other = layer.with_heads_in_front()
        return Seconds(*(self._seconds(lambda each=each: call(query, each, step, Sight(3))) for each in (layer, other)))

    def _seconds(self, act: Callable[[], object]) -> float:
        act()
        self._backend.synchronize()
        began = time.perf_counter()
        for _ in range(_REPEATS):
            act()
        self._backend.synchronize()
        return (time.perf_counter() - began) / _REPEATS

    def _attend(self, way: Way, query: torch.Tensor, metadata: Any) -> torch.Tensor:
        kernel: Any = self._backend.kernels.make(way, self._attention)
        return kernel.attend(query, self._cache.layer(0), metadata)

    def _rows(self, *shape: int) -> torch.Tensor:
        rows = torch.randn(shape, generator=self._random).to(torch.bfloat16)
        return rows.to(self._backend.kernels.device)


def _relative(found: torch.Tensor, truth: torch.Tensor) -> float:
    found, truth = found.cpu().float(), truth.cpu().float()
    return float((found - truth).abs().max() / truth.abs().max())
