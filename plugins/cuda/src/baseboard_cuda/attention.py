"""The attention kernel of one kind of layer: picks tiles once, then launches."""

from __future__ import annotations

import math
from typing import Final

import torch
import triton

from baseboard.contract import AttentionSpec, KVCacheSpec
from baseboard_cuda.cache import LayerPlane
from baseboard_cuda.chip import Chip
from baseboard_cuda.faults import device_faults
from baseboard_cuda.kernels.attention import join_splits, paged_attention
from baseboard_cuda.kernels.numbers import E4M3_FACTOR
from baseboard_cuda.kernels.write import write_kv
from baseboard_cuda.launching import on_grid
from baseboard_cuda.layout import BlockLayout
from baseboard_cuda.metadata import CudaMetadata, Part
from baseboard_cuda.tiles import Tile

_WRITE_ELEMENTS: Final = 2048  # of a program that stores keys and values
_WARPS: Final = 4  # of programs that do not multiply matrices
_SMALLEST: Final = 16  # side of a matrix that the tensor cores take


class PagedAttention:
    """Implements :class:`baseboard.contract.AttentionKernel`. Launches on the current stream, waits for nothing."""

    def __init__(self, attention: AttentionSpec, kv: KVCacheSpec, layout: BlockLayout, chip: Chip) -> None:
        self._attention: Final = attention
        self._kv: Final = kv
        self._layout: Final = layout
        self._tiles: Final = chip.tiles
        self._programs: Final = chip.num_processors * chip.tiles.programs_per_processor
        self._ratio: Final = attention.num_heads // kv.num_kv_heads
        self._slopes: Final = _per_head(attention.alibi_slopes, chip.device)
        self._sinks: Final = _per_head(attention.sinks, chip.device)
        storage = "fp8" if layout.fp8 else "native"
        largest = max(kv.head_size, kv.head_size_v)
        self._decode: Final = chip.tiles.find("decode", kv.dtype, storage, largest)
        self._prefill: Final = chip.tiles.find("prefill", kv.dtype, storage, largest)
        self._offsets: Final = {
            "block_stride": layout.stride,
            "value_offset": layout.value_offset // layout.element.itemsize,
            "key_scale_offset": layout.key_scale_offset // 4,
            "value_scale_offset": layout.value_scale_offset // 4,
        }
        self._exact: Final = kv.dtype == "float32"
        self._factors: Final = _factors(attention, 1.0 if self._exact else math.log2(math.e), layout)
        self._sizes: Final = {
            "NUM_KV_HEADS": kv.num_kv_heads,
            "HEAD_SIZE": kv.head_size,
            "HEAD_SIZE_V": kv.head_size_v,
            "BLOCK_D": padded(kv.head_size),
            "BLOCK_DV": padded(kv.head_size_v),
            "BLOCK_SIZE": kv.block_size,
            "FP8": layout.fp8,
            "SCALED": layout.scaled,
        }
        self._options: Final = {
            "HEADS_PER_KV": self._ratio,
            "WINDOWED": attention.sliding_window is not None,
            "SOFTCAPPED": attention.softcap is not None,
            "ALIBI": attention.alibi_slopes is not None,
            "SINKS": attention.sinks is not None,
            # What is rounded to TF32 would not equal another implementation's tokens.
            "PRECISION": "ieee" if self._exact else "tf32",
            "EXACT": self._exact,
        }

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: LayerPlane, metadata: CudaMetadata) -> None:
        num_tokens = metadata.slot_mapping.shape[0]
        if not num_tokens:
            return
        rows = write_rows(self._kv)
        with device_faults("storing keys and values"):
            on_grid(write_kv, (triton.cdiv(num_tokens * self._kv.num_kv_heads, rows),), _WARPS)(
                key,
                value,
                layer.data,
                layer.scales,
                metadata.slot_mapping,
                num_tokens,
                *key.stride()[:2],
                *value.stride()[:2],
                **self._offsets,
                **self._sizes,
                TILE_ROWS=rows,
            )

    def attend(
        self, query: torch.Tensor, layer: LayerPlane, metadata: CudaMetadata, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        if out is None:
            out = query.new_empty(*query.shape[:2], self._kv.head_size_v)
        with device_faults("attention"):
            for part in metadata.parts:
                self._launch(query, layer, metadata, part, out)
        return out

    def _launch(
        self, query: torch.Tensor, layer: LayerPlane, metadata: CudaMetadata, part: Part, out: torch.Tensor
    ) -> None:
        tile = self._decode if part.one_query else self._prefill
        heads = min(self._ratio, tile.rows)
        queries = 1 if part.one_query else tile.rows // heads
        tiles = part.num_sequences + (0 if part.one_query else part.num_tokens // queries)
        columns = self._kv.num_kv_heads * triton.cdiv(self._ratio, heads)
        splits = self._splits(tiles * columns, part.longest, queries, tile)
        partial, stats = self._partial(query, splits) if splits > 1 else (out, out)
        window = self._attention.sliding_window
        on_grid(paged_attention, (tiles, columns, splits), tile.warps, tile.stages)(
            out,
            partial,
            stats,
            query,
            layer.data,
            layer.scales,
            metadata.block_tables,
            metadata.seq_lens,
            metadata.query_start_loc,
            self._slopes,
            self._sinks,
            part.first_sequence,
            part.num_sequences,
            *out.stride()[:2],
            *query.stride()[:2],
            metadata.block_tables.stride(0),
            **self._factors,
            window=0 if window is None else window,
            **self._offsets,
            **self._sizes,
            **self._options,
            CAUSAL=metadata.causal,
            ONE_QUERY=part.one_query,
            SPLIT=splits > 1,
            TILE_QUERIES=queries,
            TILE_HEADS=heads,
            TILE_ROWS=tile.rows,
            TILE_KEYS=tile.keys,
        )
        if splits > 1:
            on_grid(join_splits, (part.num_tokens, query.shape[1]), _WARPS)(
                out,
                partial,
                stats,
                part.first_token,
                splits,
                *out.stride()[:2],
                HEAD_SIZE_V=self._sizes["HEAD_SIZE_V"],
                BLOCK_DV=self._sizes["BLOCK_DV"],
                EXACT=self._exact,
            )

    def _splits(self, programs: int, longest: int, queries: int, tile: Tile) -> int:
        """Into how many parts keys are split: as many as fill the chip, none too short to be worth it."""
        seen = longest
        if self._attention.sliding_window is not None:
            seen = min(longest, self._attention.sliding_window + queries - 1)
        shortest = max(self._tiles.least_split_keys, tile.keys)
        return max(1, min(self._programs // programs, seen // shortest))

    def _partial(self, query: torch.Tensor, splits: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = (*query.shape[:2], splits)
        return (
            torch.empty((*rows, self._sizes["BLOCK_DV"]), dtype=torch.float32, device=query.device),
            torch.empty((*rows, 2), dtype=torch.float32, device=query.device),
        )


def padded(size: int) -> int:
    """``size`` as the tensor cores and Triton's ranges want it: a power of two, not too small."""
    return max(_SMALLEST, triton.next_power_of_2(size))


def write_rows(kv: KVCacheSpec) -> int:
    """Heads of tokens that one program stores."""
    return max(1, _WRITE_ELEMENTS // max(padded(kv.head_size), padded(kv.head_size_v)))


def _factors(attention: AttentionSpec, unit: float, layout: BlockLayout) -> dict[str, float]:
    """What makes a score of a product of query and key; with a softcap, what makes the argument of its tangent."""
    stored = float(E4M3_FACTOR.value) if layout.fp8 else 1.0
    if attention.softcap is None:
        return {"score_factor": attention.scale * unit * stored, "softcap": 1.0}
    return {"score_factor": attention.scale / attention.softcap * stored, "softcap": attention.softcap * unit}


def _per_head(values: tuple[float, ...] | None, device: torch.device) -> torch.Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.float32, device=device)
