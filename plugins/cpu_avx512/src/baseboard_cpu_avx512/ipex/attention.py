"""One layer's attention by IPEX's operators."""

from __future__ import annotations

from typing import Final

import torch

from baseboard.contract import AttentionSpec, KVCacheSpec
from baseboard_cpu_avx512.ipex.cache import LayerBlocks
from baseboard_cpu_avx512.ipex.installation import Operators
from baseboard_cpu_avx512.ipex.metadata import Chunks, Decodes, IpexMetadata

_NONE: Final = -1  #: no window, to the left or to the right
_NO_SOFTCAP: Final = -1.0
_NO_SCALE: Final = 1.0  #: of fp8 keys or values


class IpexAttention:
    """A kernel for layers of one kind."""

    def __init__(self, operators: Operators, attention: AttentionSpec, kv: KVCacheSpec) -> None:
        self._operators: Final = operators
        self._scale: Final = attention.scale
        self._softcap: Final = attention.softcap
        self._window: Final = attention.sliding_window
        self._block_size: Final = kv.block_size
        self._kv_head: Final = torch.arange(kv.num_kv_heads, dtype=torch.int32).repeat_interleave(
            attention.num_heads // kv.num_kv_heads
        )

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: LayerBlocks, metadata: IpexMetadata) -> None:
        """Store keys and values of this step. Slots outside the pool are undefined: see ``baseboard.kit.checked``."""
        self._operators.reshape_and_cache(
            key, value, layer.keys, layer.values, metadata.slots, "auto", _NO_SCALE, _NO_SCALE
        )

    def attend(
        self, query: torch.Tensor, layer: LayerBlocks, metadata: IpexMetadata, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attention of the step's queries."""
        if out is None:
            out = torch.empty_like(query, memory_format=torch.contiguous_format)
        if metadata.seeing is None:
            self._run(query, layer, metadata, out)
            return out
        rows = query[metadata.seeing]
        out.zero_()
        self._run(rows, layer, metadata, result := torch.empty_like(rows))
        return out.index_copy_(0, metadata.seeing, result)

    def _run(self, query: torch.Tensor, layer: LayerBlocks, metadata: IpexMetadata, out: torch.Tensor) -> None:
        if self._window == 1:  # to the operator for chunks, a window of no key beside the query's own is none at all
            self._take_own_values(layer, metadata.seen_slots, out)
            return
        if query.stride(1) != query.shape[2]:  # single queries are read as if their heads lay side by side
            query = query.contiguous()
        # Single queries with a softcap go another way: the operator for them takes no window beside one, and without
        # a window it fails as :meth:`_decode` says.
        if self._softcap is None and metadata.decodes is not None:
            self._decode(query, layer, metadata.decodes, out)
        chunks = metadata.chunks if self._softcap is None else metadata.all_chunks
        if chunks is not None:
            self._attend_chunks(query[chunks.first :], layer, chunks, out[chunks.first :])

    def _take_own_values(self, layer: LayerBlocks, slots: torch.Tensor, out: torch.Tensor) -> None:
        """The attention of queries that see no key but their own."""
        values = layer.values[slots // self._block_size, :, slots % self._block_size]
        out.copy_(values.index_select(1, self._kv_head))

    def _visible(self, longest: int) -> int:
        """How many keys a query of the longest sequence may see: a number that 64 bits hold, whatever the window."""
        return longest if self._window is None else min(self._window, longest)

    def _decode(self, query: torch.Tensor, layer: LayerBlocks, decodes: Decodes, out: torch.Tensor) -> None:
        """A window of ``W`` is ``W`` keys here.

        Four sequences or more that share their first block are taken for beams, and fail for want of a window: there
        always is one, if need be of the longest sequence.
        """
        rows = slice(decodes.num_rows)
        self._operators.single_query_cached_kv_attention(
            out[rows],
            query[rows],
            layer.keys,
            layer.values,
            self._kv_head,
            self._scale,
            decodes.tables,
            decodes.lengths,
            self._block_size,
            decodes.longest,
            None,
            self._visible(decodes.longest),
            _NO_SCALE,
            _NO_SCALE,
            _NO_SOFTCAP,
        )

    def _attend_chunks(self, query: torch.Tensor, layer: LayerBlocks, chunks: Chunks, out: torch.Tensor) -> None:
        """A window of ``W`` is ``W - 1`` keys here, the query's own not counted."""
        self._operators.flash_attn_varlen_func(
            out,
            query,
            layer.keys,
            layer.values,
            chunks.query_starts,
            chunks.key_starts,
            chunks.longest_query,
            chunks.longest,
            self._scale,
            True,
            chunks.tables,
            None,
            _NONE if self._window is None else self._visible(chunks.longest) - 1,
            _NONE,
            "auto",
            _NO_SCALE,
            _NO_SCALE,
            _NO_SOFTCAP if self._softcap is None else self._softcap,
        )
