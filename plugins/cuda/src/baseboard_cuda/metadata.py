"""What the kernels need of a step: its index arrays on the device, brought there by one copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import StepBatch

_ALIGNMENT: Final = 16  # Triton compiles anew for a pointer that is less aligned than the last one

#: Brings host bytes to the device without waiting; the array may be rewritten when it returns.
Upload: TypeAlias = Callable[[NDArray[Any]], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Part:
    """Sequences that one launch computes: the decoding ones, or the others."""

    first_sequence: int
    num_sequences: int
    first_token: int
    num_tokens: int
    longest: int  #: keys of the longest sequence
    one_query: bool


@dataclass(slots=True, eq=False)
class CudaMetadata:
    """Tensors are the step's own: nothing that is done for the next step touches them. A graph may change its own."""

    packed: torch.Tensor  #: uint8; the tensors below are parts of it
    slot_mapping: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    key_start_loc: torch.Tensor  #: int32 ``[S+1]``: sums of ``seq_lens``
    parts: tuple[Part, ...]
    causal: bool
    max_query_len: int
    max_seq_len: int
    table_keys: int  #: that a row of the block tables has room for
    host_query_start_loc: NDArray[np.int32]
    host_seq_lens: NDArray[np.int32]
    host_block_tables: NDArray[np.int32]

    def reach_all(self) -> None:
        """Launch for sequences as long as the tables have room for: what is recorded is replayed with any lengths."""
        self.parts = tuple(replace(part, longest=max(part.longest, self.table_keys)) for part in self.parts)

    def check_like(self, other: CudaMetadata) -> None:
        """Raise ``ValueError`` unless ``other`` has this one's shapes, so that its numbers fit in this one's place."""
        ours, theirs = self.block_tables.shape, other.block_tables.shape
        recorded, asked = len(self.slot_mapping), len(other.slot_mapping)
        if ours != theirs or recorded != asked:
            raise ValueError(
                f"a step of {asked} tokens with block tables {tuple(theirs)} cannot be replayed by a graph of "
                f"{recorded} tokens with block tables {tuple(ours)}: pad it to these"
            )


def make_metadata(batch: StepBatch, block_size: int, upload: Upload) -> CudaMetadata:
    """Copies the arrays of ``batch``; waits for nothing. ``block_size`` in tokens."""
    keys = np.concatenate([[0], np.cumsum(batch.seq_lens)]).astype(np.int32)
    arrays = (batch.slot_mapping, batch.query_start_loc, batch.seq_lens, batch.block_tables, keys)
    packed, offsets = _pack(arrays)
    there = upload(packed)
    tensors = [
        there[offset : offset + array.nbytes].view(_TORCH[array.dtype.name]).view(array.shape)
        for array, offset in zip(arrays, offsets, strict=True)
    ]
    # Copies of the batch's arrays, which are rewritten for the next step.
    starts, lengths, tables = (
        packed[offset : offset + array.nbytes].view(np.int32).reshape(array.shape)
        for array, offset in zip(arrays[1:4], offsets[1:4], strict=True)
    )
    return CudaMetadata(
        there,
        *tensors,
        parts=tuple(_parts(batch)),
        causal=batch.causal,
        max_query_len=batch.max_query_len,
        max_seq_len=batch.max_seq_len,
        table_keys=batch.block_tables.shape[1] * block_size,
        host_query_start_loc=starts,
        host_seq_lens=lengths,
        host_block_tables=tables,
    )


_TORCH: Final = {"int32": torch.int32, "int64": torch.int64}


def _pack(arrays: tuple[NDArray[Any], ...]) -> tuple[NDArray[np.uint8], list[int]]:
    sizes = [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]
    ends = np.cumsum(sizes).tolist()
    offsets = [end - size for end, size in zip(ends, sizes, strict=True)]
    packed = np.zeros(ends[-1], np.uint8)
    for array, offset in zip(arrays, offsets, strict=True):
        packed[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return packed, offsets


def _parts(batch: StepBatch) -> list[Part]:
    decodes = batch.num_decodes
    cuts = [(0, decodes, True), (decodes, batch.num_seqs, False)]
    starts = batch.query_start_loc
    return [
        Part(
            first_sequence=begin,
            num_sequences=end - begin,
            first_token=int(starts[begin]),
            num_tokens=int(starts[end] - starts[begin]),
            longest=int(batch.seq_lens[begin:end].max()),
            one_query=one_query,
        )
        for begin, end, one_query in cuts
        if end > begin
    ]
