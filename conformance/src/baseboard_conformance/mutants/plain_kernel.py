"""Attention of a plain and right backend, made to be broken: every decision is a method of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import AttentionSpec, KVCacheSpec, StepBatch
from baseboard_conformance.bench import to_torch


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One layer's slots: keys ``[N * B, Hkv, D]``, values ``[N * B, Hkv, Dv]``."""

    key: torch.Tensor
    value: torch.Tensor


@dataclass(slots=True, eq=False)
class Metadata:
    """Copies of the step's index arrays."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    tables: NDArray[np.int64]
    slots: NDArray[np.int64]
    block_size: int
    causal: bool

    @classmethod
    def of(cls, batch: StepBatch, block_size: int) -> Metadata:
        arrays = (batch.query_start_loc, batch.seq_lens, batch.block_tables, batch.slot_mapping)
        starts, lengths, tables, slots = (array.astype(np.int64) for array in arrays)
        return cls(starts, lengths, tables, slots, block_size, batch.causal)


class PlainKernel:
    """The formula of ``AttentionSpec``, sequence by sequence, in float32."""

    def __init__(self, attention: AttentionSpec, kv: KVCacheSpec) -> None:
        self.spec = attention
        self.kv = kv

    # --- the contract -------------------------------------------------------------------------------------------

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: Layer, metadata: Metadata) -> None:
        slots = to_torch(self.write_slots(metadata))
        layer.key[slots] = key
        layer.value[slots] = value

    def attend(
        self, query: torch.Tensor, layer: Layer, metadata: Metadata, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        if out is None:
            out = query.new_empty(*query.shape[:2], layer.value.shape[2])
        for sequence in range(len(metadata.lengths)):
            begin, end = int(metadata.starts[sequence]), int(metadata.starts[sequence + 1])
            positions = self.key_positions(metadata, sequence)
            slots = self.key_slots(metadata, sequence, positions)
            length = int(metadata.lengths[sequence])
            p = np.arange(length - (end - begin), length)
            seen = to_torch(self.seen(p[:, None], positions[None, :], metadata))
            key = self.per_head(layer.key[slots].float())
            value = self.per_head(layer.value[slots].float())
            distance = to_torch(positions[None, :] - p[:, None])
            x = self.logits(query[begin:end].float(), key, distance)
            out[begin:end] = self.mix(x, seen, value).to(out.dtype)
        return out

    # --- what can go wrong --------------------------------------------------------------------------------------

    def write_slots(self, metadata: Metadata) -> NDArray[np.int64]:
        return metadata.slots

    def key_positions(self, metadata: Metadata, sequence: int) -> NDArray[np.int64]:
        """Positions of the keys that are gathered."""
        return np.arange(int(metadata.lengths[sequence]))

    def key_slots(self, metadata: Metadata, sequence: int, positions: NDArray[np.int64]) -> torch.Tensor:
        size = metadata.block_size
        blocks = self.table(metadata, sequence)[positions // size]
        return to_torch(blocks * size + positions % size)

    def table(self, metadata: Metadata, sequence: int) -> NDArray[np.int64]:
        return metadata.tables[sequence]

    def per_head(self, rows: torch.Tensor) -> torch.Tensor:
        """``[L, Hkv, D]`` as ``[L, H, D]``."""
        return rows.repeat_interleave(self.spec.num_heads // self.spec.num_kv_heads, dim=1)

    def seen(self, p: NDArray[np.int64], j: NDArray[np.int64], metadata: Metadata) -> NDArray[np.bool_]:
        """Which keys a query sees ``[q, L]``."""
        seen = self.before(p, j) if metadata.causal else np.full(np.broadcast_shapes(p.shape, j.shape), fill_value=True)
        window = self.window(metadata)
        return seen if window is None else seen & (j > p - window)

    def before(self, p: NDArray[np.int64], j: NDArray[np.int64]) -> NDArray[np.bool_]:
        return j <= p

    def window(self, metadata: Metadata) -> int | None:
        return self.spec.sliding_window

    def scale(self) -> float:
        return self.spec.scale

    def slopes(self) -> tuple[float, ...] | None:
        return self.spec.alibi_slopes

    def sinks(self) -> tuple[float, ...] | None:
        return self.spec.sinks

    def logits(self, query: torch.Tensor, key: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
        """``[H, q, L]``; ``distance`` is ``j - p``."""
        x = self.capped(torch.einsum("qhd,lhd->hql", query, key) * self.scale())
        slopes = self.slopes()
        return x if slopes is None else x + torch.tensor(slopes)[:, None, None] * distance

    def capped(self, x: torch.Tensor) -> torch.Tensor:
        cap = self.spec.softcap
        return x if cap is None else cap * torch.tanh(x / cap)

    def mix(self, x: torch.Tensor, seen: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """``[q, H, Dv]``"""
        x = x.masked_fill(~seen, -torch.inf)
        sinks = self.sinks()
        sink = torch.full((len(x), 1, 1), -torch.inf) if sinks is None else torch.tensor(sinks)[:, None, None]
        top = torch.maximum(x.amax(-1, keepdim=True), sink)
        weights = (x - top).exp()
        weights = weights / (weights.sum(-1, keepdim=True) + (sink - top).exp())
        return self.weighted(weights, value)

    def weighted(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return torch.einsum("hql,lhd->qhd", weights, value)
