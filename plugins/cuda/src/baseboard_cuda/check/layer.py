"""One layer of attention that is checked and measured: its sizes, and its pool once sequences are written to it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from baseboard.contract import AttentionSpec, KVCacheSpec, KVDType, StepBatch
from baseboard.kit.dtypes import dtype_name
from baseboard_cuda.backend import CudaBackend


@dataclass(frozen=True, slots=True)
class Shape:
    """Sequences of equal length, of which the last ``queries`` tokens are computed."""

    sequences: int
    length: int
    queries: int
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    block_size: int = 16

    @property
    def blocks(self) -> int:
        return 1 + self.sequences * -(-self.length // self.block_size)

    def specs(self, dtype: torch.dtype, kv_dtype: KVDType = "auto") -> tuple[AttentionSpec, KVCacheSpec]:
        attention = AttentionSpec(self.heads, self.kv_heads, self.head_size, self.head_size**-0.5)
        size = self.head_size
        return attention, KVCacheSpec(1, self.kv_heads, size, size, dtype_name(dtype), self.block_size, kv_dtype)

    def batch(self) -> StepBatch:
        """Blocks in random order, as a pool has them after a while."""
        columns = -(-self.length // self.block_size)
        order = 1 + np.random.default_rng(0).permutation(self.sequences * columns)
        tables = order.reshape(self.sequences, columns).astype(np.int32)
        positions = np.arange(self.length - self.queries, self.length)
        slots = tables[:, positions // self.block_size].astype(np.int64) * self.block_size + positions % self.block_size
        return StepBatch(
            query_start_loc=np.arange(self.sequences + 1, dtype=np.int32) * self.queries,
            seq_lens=np.full(self.sequences, self.length, np.int32),
            block_tables=tables,
            slot_mapping=slots.ravel(),
            positions=np.tile(positions, self.sequences),
            num_decodes=self.sequences if self.queries == 1 else 0,
            max_query_len=self.queries,
            max_seq_len=self.length,
        )


class WrittenLayer:
    """A pool with whole sequences, written by the layer's own kernel, and the step that computes their last tokens.

    ``key`` and ``value`` are ``[sequences * length, kv_heads, head_size]``, in the dtype of the layer.
    """

    def __init__(
        self, backend: CudaBackend, shape: Shape, kv_dtype: KVDType, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        attention, kv = shape.specs(key.dtype, kv_dtype)
        device = backend.torch_device()
        cache = backend.allocate_kv_cache(kv, shape.blocks)
        self._layer = cache.layer(0)
        self._kernel = backend.attention_kernel(attention, kv)
        whole = backend.build_attention_metadata(replace(shape, queries=shape.length).batch(), cache)
        self._kernel.write(key.to(device), value.to(device), self._layer, whole)
        self._step = backend.build_attention_metadata(shape.batch(), cache)

    def attend(self, query: torch.Tensor) -> torch.Tensor:
        """``query`` is ``[sequences * queries, heads, head_size]`` on the device, and so is what comes out."""
        return self._kernel.attend(query, self._layer, self._step)
