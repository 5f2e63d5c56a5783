"""A step's index arrays as IPEX takes them: int32, contiguous, single queries apart from longer ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import StepBatch, Unsupported


@dataclass(frozen=True, slots=True)
class Decodes:
    """The first sequences of a step, of one query each."""

    tables: torch.Tensor  #: int32 ``[S, M]``
    lengths: torch.Tensor  #: int32 ``[S]``
    longest: int

    @property
    def num_rows(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True, slots=True)
class Chunks:
    """Sequences of any number of queries; the first of these is row ``first`` of the step."""

    first: int
    tables: torch.Tensor  #: int32 ``[S, M]``
    query_starts: torch.Tensor  #: int32 ``[S + 1]``, from 0
    key_starts: torch.Tensor  #: int32 ``[S + 1]``, from 0
    longest_query: int
    longest: int


class IpexMetadata:
    """The step, copied from the core's arrays. Raises ``Unsupported`` for a step without causal mask.

    IPEX reads nothing of a sequence that has no key but gives NaN, so rows that see none are left out of the step.
    """

    def __init__(self, batch: StepBatch) -> None:
        if not batch.causal:
            raise Unsupported(
                ["attention without causal mask is not supported by kernels='ipex': IPEX has none, take kernels='own'"]
            )
        counts = np.diff(batch.query_start_loc)
        seen = np.minimum(counts, batch.seq_lens)  # of each sequence's queries, the last so many see a key
        kept = seen > 0
        self._counts: Final = seen[kept]
        self._lengths: Final = batch.seq_lens[kept]
        self._tables: Final = batch.block_tables[kept]
        self._num_decodes: Final = int(kept[: batch.num_decodes].sum())
        self.slots: Final = _tensor(batch.slot_mapping)  #: int32 ``[T]``
        self.seeing: Final = None if (seen == counts).all() else _last_rows(batch.query_start_loc, seen)
        """int64 rows that see a key; None: all do."""

    @cached_property
    def seen_slots(self) -> torch.Tensor:
        """int32: of ``slots`` those of the rows that see a key."""
        return self.slots if self.seeing is None else self.slots[self.seeing]

    @cached_property
    def decodes(self) -> Decodes | None:
        """Sequences that decode; None: there are none."""
        end = self._num_decodes
        if not end:  # for no sequence at all IPEX ends the process
            return None
        lengths = self._lengths[:end]
        return Decodes(_tensor(self._tables[:end]), _tensor(lengths), int(lengths.max()))

    @cached_property
    def chunks(self) -> Chunks | None:
        """Sequences that do not decode; None: there are none."""
        return self._from(self._num_decodes)

    @cached_property
    def all_chunks(self) -> Chunks | None:
        """All sequences, those that decode as chunks of one query; None: there are none."""
        return self._from(0)

    def _from(self, begin: int) -> Chunks | None:
        if begin == len(self._lengths):
            return None
        counts, lengths = self._counts[begin:], self._lengths[begin:]
        return Chunks(
            first=begin,  # those before decode: a row each
            tables=_tensor(self._tables[begin:]),
            query_starts=_tensor(np.concatenate([[0], counts.cumsum()])),
            key_starts=_tensor(np.concatenate([[0], lengths.cumsum()])),
            longest_query=int(counts.max()),
            longest=int(lengths.max()),
        )


def _last_rows(starts: NDArray[np.int32], seen: NDArray[np.int32]) -> torch.Tensor:
    first = np.repeat(starts[1:] - seen, np.diff(starts))  # for each row: the first of its sequence that sees a key
    return torch.from_numpy(np.flatnonzero(np.arange(len(first)) >= first))


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """An int32 copy in one run: IPEX reads neither strides nor another type."""
    return torch.from_numpy(array.astype(np.int32, order="C", copy=True))
