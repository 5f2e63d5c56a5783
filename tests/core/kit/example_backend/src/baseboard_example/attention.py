"""The kernel: one sequence after the other, in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from baseboard.contract import AttentionSpec, StepBatch


@dataclass(frozen=True)
class Sequence:
    rows: slice  # of the step's tokens
    slots: torch.Tensor  # of all its tokens so far
    visible: torch.Tensor  # bool, queries by keys


@dataclass(frozen=True)
class Metadata:
    slots: torch.Tensor  # of the step's tokens
    sequences: list[Sequence]


def make_metadata(batch: StepBatch, block_size: int) -> Metadata:
    # The core writes the batch's arrays anew each step: whatever is kept must be a copy.
    starts, lengths = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
    tables = torch.tensor(batch.block_tables, dtype=torch.int64)
    sequences = []
    for index, length in enumerate(lengths):
        keys = torch.arange(length)
        slots = tables[index, keys // block_size] * block_size + keys % block_size
        queries = torch.arange(length - (starts[index + 1] - starts[index]), length)
        visible = keys <= queries[:, None] if batch.causal else torch.ones(len(queries), length, dtype=torch.bool)
        sequences.append(Sequence(slice(starts[index], starts[index + 1]), slots, visible))
    return Metadata(torch.tensor(batch.slot_mapping), sequences)


class ExampleKernel:
    def __init__(self, attention: AttentionSpec) -> None:
        self.scale = attention.scale
        self.ratio = attention.num_heads // attention.num_kv_heads

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: Any, metadata: Metadata) -> None:
        keys, values = layer
        keys[metadata.slots] = key
        values[metadata.slots] = value

    def attend(
        self, query: torch.Tensor, layer: Any, metadata: Metadata, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        keys, values = layer
        result = query.new_empty(*query.shape[:2], values.shape[2]) if out is None else out
        for sequence in metadata.sequences:
            # Only the sequence's own slots are read: NaN in another slot could not be masked away, 0 * NaN is NaN.
            k, v = (x[sequence.slots].float().repeat_interleave(self.ratio, dim=1) for x in (keys, values))
            scores = torch.einsum("qhd,khd->hqk", query[sequence.rows].float(), k) * self.scale
            weights = scores.masked_fill(~sequence.visible, -torch.inf).softmax(-1)
            result[sequence.rows] = torch.einsum("hqk,khd->qhd", weights, v).to(result.dtype)
        return result
