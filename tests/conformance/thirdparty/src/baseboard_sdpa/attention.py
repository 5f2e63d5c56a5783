"""The kernel: called for every layer of every step. One sequence after the other, by torch's fused attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from baseboard.contract import AttentionSpec, StepBatch

Layer = tuple[torch.Tensor, torch.Tensor]  # keys and values, [slots, KV heads, head size]


@dataclass(frozen=True)
class Sequence:
    rows: slice  # of the step's tokens
    slots: torch.Tensor  # of all its tokens so far
    positions: torch.Tensor  # of the step's tokens


@dataclass(frozen=True)
class Metadata:
    slots: torch.Tensor  # of the step's tokens
    sequences: list[Sequence]
    causal: bool


def make_metadata(batch: StepBatch, block_size: int) -> Metadata:
    """Made once a step. The core rewrites the batch's arrays for the next step: everything here is a copy."""
    starts, lengths = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
    tables = torch.tensor(batch.block_tables, dtype=torch.int64)
    sequences: list[Sequence] = []
    for index, length in enumerate(lengths):
        keys = torch.arange(length)
        slots = tables[index, keys // block_size] * block_size + keys % block_size
        begin, end = starts[index], starts[index + 1]
        sequences.append(Sequence(slice(begin, end), slots, torch.arange(length - (end - begin), length)))
    return Metadata(torch.tensor(batch.slot_mapping), sequences, batch.causal)


class Kernel:
    def __init__(self, spec: AttentionSpec) -> None:
        self.spec = spec

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: Layer, metadata: Metadata) -> None:
        layer[0][metadata.slots] = key
        layer[1][metadata.slots] = value

    def attend(
        self, query: torch.Tensor, layer: Layer, metadata: Metadata, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        if out is None:
            out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for sequence in metadata.sequences:
            # Only slots of the sequence are read: whatever lies in others cannot leak.
            result = scaled_dot_product_attention(
                query[sequence.rows].transpose(0, 1),
                self.per_head(layer[0][sequence.slots]),
                self.per_head(layer[1][sequence.slots]),
                attn_mask=self.visible(sequence, causal=metadata.causal),
                scale=self.spec.scale,
            )
            out[sequence.rows] = result.transpose(0, 1)
        return out

    def per_head(self, rows: torch.Tensor) -> torch.Tensor:
        """Query head h reads KV head h // (H // Hkv): ``[H, L, D]``."""
        return rows.repeat_interleave(self.spec.num_heads // self.spec.num_kv_heads, dim=1).transpose(0, 1)

    def visible(self, sequence: Sequence, *, causal: bool) -> torch.Tensor:
        """P - window < j <= p"""
        p, j = sequence.positions[:, None], torch.arange(len(sequence.slots))
        seen = (j <= p) if causal else torch.ones(len(p), len(j), dtype=torch.bool)
        return seen if self.spec.sliding_window is None else seen & (j > p - self.spec.sliding_window)
