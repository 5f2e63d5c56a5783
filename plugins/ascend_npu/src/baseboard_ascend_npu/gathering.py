"""Attention out of torch's own operators, over keys and values gathered from their blocks: for what the fused
operators refuse. In float32 throughout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import AttentionSpec
from baseboard_ascend_npu.cache import LayerCache
from baseboard_ascend_npu.host import Upload

#: Keys gathered at once for decoding sequences, padding included: bounds the memory of the gathered copy.
_DECODE_KEYS: Final = 1 << 15
#: Query-key pairs of a prefill chunk that are computed at once: bounds the memory of the scores.
_PAIRS: Final = 1 << 19


@dataclass(frozen=True, slots=True)
class HostRows:
    """A step's sequences as host arrays that nobody writes any more."""

    starts: NDArray[np.int64]  #: ``[S + 1]``
    lengths: NDArray[np.int64]  #: ``[S]``
    tables: NDArray[np.int64]  #: ``[S, M]``
    num_decodes: int
    block_size: int
    causal: bool


@dataclass(frozen=True, slots=True)
class Selection:
    """Which sequences of a step are gathered, and how many keys their queries see."""

    first: int  #: sequence; those before it are computed otherwise
    window: int | None


@dataclass(frozen=True, slots=True)
class RowGroup:
    """n sequences of q queries each, over w gathered keys each: many decodes, or a part of one prefill chunk."""

    rows: slice  #: of the step's tokens, n * q of them
    slots: torch.Tensor  #: int32 ``[n * w]``; where a sequence has fewer keys, its last one again
    hidden: torch.Tensor  #: bool ``[n, q, w]``: the query does not see the key


def row_groups(step: HostRows, selection: Selection, upload: Upload) -> Iterator[RowGroup]:
    """Every query of the selected sequences in one group."""
    for sequences in _decode_parts(step, selection):
        positions = step.lengths[sequences, None] - 1
        yield _group(step, sequences, slice(sequences.start, sequences.stop), positions, selection.window, upload)
    for sequence in range(max(step.num_decodes, selection.first), len(step.lengths)):
        begin, end, length = step.starts[sequence], step.starts[sequence + 1], step.lengths[sequence]
        size = max(1, _PAIRS // int(length))
        for at in range(int(begin), int(end), size):
            rows = slice(at, min(at + size, int(end)))
            positions = np.arange(rows.start, rows.stop)[None] - end + length
            yield _group(step, slice(sequence, sequence + 1), rows, positions, selection.window, upload)


def _decode_parts(step: HostRows, selection: Selection) -> Iterator[slice]:
    """Decoding sequences in runs that padded to their longest stay within bounds; a run has one at least."""
    begin, widest = selection.first, 0
    for index in range(selection.first, step.num_decodes):
        length = int(step.lengths[index])
        widest = max(widest, length if selection.window is None else min(length, selection.window))
        if index > begin and widest * (index + 1 - begin) > _DECODE_KEYS:
            yield slice(begin, index)
            begin, widest = index, length
    if begin < step.num_decodes:
        yield slice(begin, step.num_decodes)


def _group(
    step: HostRows, sequences: slice, rows: slice, positions: NDArray[np.int64], window: int | None, upload: Upload
) -> RowGroup:
    """``positions`` ``[n, q]`` of the queries in their sequences."""
    first = np.zeros_like(positions) if window is None else np.maximum(positions - window + 1, 0)
    last = positions if step.causal else np.zeros_like(positions) + step.lengths[sequences, None] - 1
    begin, end = first.min(axis=1, keepdims=True), last.max(axis=1, keepdims=True) + 1
    keys = begin + np.arange((end - begin).max())
    read = np.minimum(keys, end - 1)
    blocks = np.take_along_axis(step.tables[sequences], read // step.block_size, axis=1)
    slots = blocks * step.block_size + read % step.block_size
    keys, first, last, slots = upload.together(keys[:, None], first[..., None], last[..., None], slots.ravel())
    return RowGroup(rows, slots, (keys < first) | (keys > last))


class GatheredAttention:
    """The definition in :class:`AttentionSpec` for one layer, without what ``unsupported`` refuses."""

    def __init__(self, attention: AttentionSpec, device: torch.device) -> None:
        self._scale: Final = attention.scale
        self._shape: Final = (attention.num_kv_heads, attention.num_heads // attention.num_kv_heads)
        sinks = attention.sinks
        self._sinks: Final = (
            None if sinks is None else torch.tensor(sinks, dtype=torch.float32).reshape(*self._shape, 1, 1).to(device)
        )

    def fill(self, out: torch.Tensor, query: torch.Tensor, layer: LayerCache, group: RowGroup) -> None:
        """Compute the group's rows of ``out`` ``[T, H, Dv]`` from those of ``query`` ``[T, H, D]``."""
        n, q, w = group.hidden.shape
        kv_heads, ratio = self._shape
        key = _gather(layer.key, group.slots).unflatten(0, (n, w)).permute(0, 2, 3, 1)  # [n, Hkv, D, w]
        value = _gather(layer.value, group.slots).unflatten(0, (n, w)).transpose(1, 2)  # [n, Hkv, w, Dv]
        rows = query[group.rows].float().view(n, q, kv_heads, ratio, -1).permute(0, 2, 3, 1, 4)
        scores = torch.matmul(rows.flatten(2, 3), key).unflatten(2, (ratio, q)) * self._scale
        weights = self._weights(scores.masked_fill(group.hidden[:, None, None], -torch.inf))
        result = torch.matmul(weights.flatten(2, 3), value).unflatten(2, (ratio, q))  # [n, Hkv, G, q, Dv]
        out[group.rows] = result.permute(0, 3, 1, 2, 4).reshape(n * q, kv_heads * ratio, -1).to(out.dtype)

    def _weights(self, scores: torch.Tensor) -> torch.Tensor:
        if self._sinks is None:
            return scores.softmax(-1)
        highest = torch.maximum(scores.amax(-1, keepdim=True), self._sinks)
        weights = (scores - highest).exp()
        return weights / (weights.sum(-1, keepdim=True) + (self._sinks - highest).exp())


def _gather(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Rows of ``cache`` ``[N, B, Hkv, D]`` in float32."""
    return cache.flatten(0, 1).index_select(0, slots).float()
