"""One layer's attention: fills an argument structure and calls the library."""

from __future__ import annotations

import ctypes
from typing import Final

import numpy as np
import torch

from baseboard.contract import AttentionSpec, KVCacheSpec
from baseboard_cpu_avx512.layout import BlockLayout, LayerPages
from baseboard_cpu_avx512.levels import Level
from baseboard_cpu_avx512.metadata import RowShape, StepMetadata
from baseboard_cpu_avx512.structures import DTYPES, AttendArgs, WriteArgs

_NO_WINDOW: Final = 2**31 - 1


class PagedAttention:
    """A kernel for layers of one kind. Calls of one kernel must not overlap: they share its argument structures."""

    def __init__(self, library: ctypes.CDLL, level: Level, attention: AttentionSpec, kv: KVCacheSpec) -> None:
        self._library: Final = library
        self._slopes: Final = _per_head(attention.alibi_slopes)
        self._sinks: Final = _per_head(attention.sinks)
        self._write: Final = WriteArgs(level=level)
        self._attend: Final = AttendArgs(
            level=level,
            scale=attention.scale,
            softcap=attention.softcap or 0.0,
            slopes=None if self._slopes is None else self._slopes.ctypes.data,
            sinks=None if self._sinks is None else self._sinks.ctypes.data,
        )
        self._shape: Final = RowShape(
            attention.num_heads,
            attention.num_kv_heads,
            kv.head_size,
            kv.head_size_v,
            min(attention.sliding_window or 0, _NO_WINDOW),
            DTYPES[BlockLayout(kv).stored],
            level,
        )

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: LayerPages, metadata: StepMetadata) -> None:
        """Store keys and values of this step. Slots outside the pool are undefined: see ``baseboard.kit.checked``."""
        args = self._write
        args.cache = layer.address
        args.key, args.value = key.data_ptr(), value.data_ptr()
        args.slots, args.tokens = metadata.slots, metadata.num_tokens
        args.key_token, args.key_head, _ = key.stride()
        args.value_token, args.value_head, _ = value.stride()
        args.threads = metadata.threads
        self._library.bb_write(args)

    def attend(
        self, query: torch.Tensor, layer: LayerPages, metadata: StepMetadata, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attention of the step's queries. ``torch.OutOfMemoryError`` when a thread's scratch memory cannot be had."""
        if out is None:
            out = query.new_empty((query.shape[0], self._shape.heads, self._shape.head_size_v))
        args = self._attend
        args.cache = layer.address
        args.plan = metadata.plan(self._shape).handle
        args.block_tables, args.table_stride = metadata.block_tables, metadata.table_stride
        args.query, args.out = query.data_ptr(), out.data_ptr()
        args.query_token, args.query_head, _ = query.stride()
        args.out_token, args.out_head, _ = out.stride()
        args.threads = metadata.threads
        if self._library.bb_attend(args):
            raise torch.OutOfMemoryError("the attention kernel's scratch memory, under 1 MB a thread, cannot be had")
        return out


def _per_head(values: tuple[float, ...] | None) -> np.ndarray | None:
    return None if values is None else np.array(values, dtype=np.float32)
