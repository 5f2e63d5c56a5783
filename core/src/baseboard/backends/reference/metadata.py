"""Index arrays of one step, made once and used by all layers of a group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import StepBatch

#: Keys gathered at once for decoding sequences, padding included: bounds the memory of the gathered copy.
_DECODE_KEYS: Final = 1 << 15
#: Query-key pairs of a prefill chunk that are masked at once: bounds the memory of the mask.
_MASKED_PAIRS: Final = 1 << 21


class Sight(Enum):
    """Which of a group's keys its queries see."""

    ALL = "all"  #: every query sees every key
    TRIANGLE = "triangle"  #: query i sees keys 0 to i, of as many keys as queries
    MASK = "mask"  #: only the mask tells


@dataclass(frozen=True)
class RowGroup:
    """Sequences of the step that are computed together: n sequences of q queries each, over w gathered keys each.

    Either many sequences of one query (decodes) or one sequence of many (a prefill chunk, or a part of one)::

        sequence 0   k k k k k .        . padding: the slot of the last key again, so that a slot nobody owns
        sequence 1   k k k k k k          is never read; its position is beyond every query's sight
        sequence 2   k k . . . .

    A query sees the keys at positions ``first`` to ``last``. Only keys that some query sees are gathered.
    """

    rows: slice  #: of the step's tokens, n * q of them
    slots: torch.Tensor  #: int64 ``[n * w]``
    key_positions: torch.Tensor  #: int64 ``[n, w]``
    query_positions: torch.Tensor  #: int64 ``[n, q]``
    first: torch.Tensor  #: int64 ``[n, q]``
    last: torch.Tensor  #: int64 ``[n, q]``
    sight: Sight

    @property
    def shape(self) -> tuple[int, int, int]:
        """n, q, w."""
        return (*self.query_positions.shape, self.key_positions.shape[1])  # pyright: ignore[reportReturnType]

    @cached_property
    def mask(self) -> torch.Tensor:
        """Whether a query sees a key: bool ``[n, q, w]``."""
        return self.visible(slice(None))

    def visible(self, queries: slice) -> torch.Tensor:
        """The part of the mask for some of the queries."""
        keys = self.key_positions[:, None, :]
        return (keys >= self.first[:, queries, None]) & (keys <= self.last[:, queries, None])


class ReferenceMetadata:
    """What the kernels need of one step. The batch's arrays are copied: the core writes them anew each step."""

    def __init__(self, batch: StepBatch, block_size: int, device: torch.device) -> None:
        self._starts: Final = batch.query_start_loc.astype(np.int64)
        self._lengths: Final = batch.seq_lens.astype(np.int64)
        self._tables: Final = batch.block_tables.astype(np.int64)
        self._num_decodes: Final = batch.num_decodes
        self._causal: Final = batch.causal
        self._block_size: Final = block_size
        self._device: Final = device
        self._groups: Final[dict[int | None, tuple[RowGroup, ...]]] = {}
        self.slots: Final = self._tensor(batch.slot_mapping.astype(np.int64))
        self.blind: Final = self._blind_rows()

    def groups(self, window: int | None) -> tuple[RowGroup, ...]:
        """The step's rows for layers that see ``window`` keys; made on first use, kept for the layers after."""
        if window not in self._groups:
            self._groups[window] = tuple(self._make_groups(window))
        return self._groups[window]

    def _make_groups(self, window: int | None) -> Iterator[RowGroup]:
        reach = self._lengths[: self._num_decodes]
        for part in _parts(reach if window is None else np.minimum(reach, window), _DECODE_KEYS):
            yield from self._group(part, part, self._lengths[part, None] - 1, window)
        for sequence in range(self._num_decodes, len(self._lengths)):
            yield from self._chunk(sequence, window)

    def _chunk(self, sequence: int, window: int | None) -> Iterator[RowGroup]:
        """A prefill chunk: whole where no mask is needed, else in parts of bounded masks."""
        length, begin, end = self._lengths[sequence], self._starts[sequence], self._starts[sequence + 1]
        positions = np.arange(length - (end - begin), length)
        whole = positions[0] == 0 and (window is None or window >= length)
        size = len(positions) if whole else max(1, _MASKED_PAIRS // max(1, int(length)))
        for at in range(0, len(positions), size):
            part = positions[None, at : at + size]
            rows = slice(int(begin) + at, int(begin) + at + part.shape[1])
            yield from self._group(slice(sequence, sequence + 1), rows, part, window)

    def _group(
        self, sequences: slice, rows: slice, positions: NDArray[np.int64], window: int | None
    ) -> Iterator[RowGroup]:
        """The group of queries at ``positions`` ``[n, q]``; none if no query sees a key."""
        lengths = self._lengths[sequences, None]
        first = np.zeros_like(positions) if window is None else np.maximum(positions - window + 1, 0)
        last = positions if self._causal else np.zeros_like(positions) + lengths - 1
        begin, end = first.min(axis=1, keepdims=True), last.max(axis=1, keepdims=True) + 1
        width = int((end - begin).max(initial=0))
        if width <= 0:
            return
        keys = begin + np.arange(width)
        read = np.clip(keys, 0, np.maximum(end - 1, 0))
        blocks = np.take_along_axis(self._tables[sequences], read // self._block_size, axis=1)
        yield RowGroup(
            rows=rows,
            slots=self._tensor((blocks * self._block_size + read % self._block_size).ravel()),
            key_positions=self._tensor(keys),
            query_positions=self._tensor(positions),
            first=self._tensor(first),
            last=self._tensor(last),
            sight=_sight(first, last, keys),
        )

    def _blind_rows(self) -> torch.Tensor | None:
        """Rows that see no key, int64 ``[r]``: those before their sequence's start. None in any sound batch."""
        counts = np.diff(self._starts)
        ends = np.repeat(self._lengths - self._starts[1:], counts)
        positions = np.arange(self._starts[-1]) + ends
        blind = positions < 0 if self._causal else np.repeat(self._lengths, counts) < 1
        return self._tensor(np.flatnonzero(blind)) if blind.any() else None

    def _tensor(self, array: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


def _parts(widths: NDArray[np.int64], limit: int) -> Iterator[slice]:
    """Split sequences into runs that padded to their widest hold at most ``limit`` keys; a run has one at least."""
    begin, widest = 0, 0
    for index, width in enumerate(widths.tolist()):
        widest = max(widest, width)
        if index > begin and widest * (index + 1 - begin) > limit:
            yield slice(begin, index)
            begin, widest = index, width
    if begin < len(widths):
        yield slice(begin, len(widths))


def _sight(first: NDArray[np.int64], last: NDArray[np.int64], keys: NDArray[np.int64]) -> Sight:
    if (first <= keys[:, :1]).all() and (last >= keys[:, -1:]).all():
        return Sight.ALL
    queries = np.arange(first.shape[1])
    if first.shape[0] == 1 and len(queries) == keys.shape[1] and (first == 0).all() and (last == queries).all():
        return Sight.TRIANGLE
    return Sight.MASK
