"""The index arrays of one step, handed to a backend once for all layers of a group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Where each token of the step sits. S sequences, T tokens, M columns of the block table, B block size.

    All arrays are contiguous host arrays in buffers from ``allocate_host_buffer``; the core writes them anew
    each step, so a backend that reads them later than the call must copy them (double buffering).
    No sequence is empty. Block 0 is the null block: padding points at it, no request owns it; slots are never
    negative. Sequences ``[0, num_decodes)`` have exactly one token.

    ::

        sequence        0    1         2
        tokens          .    . . . .   . .          T = 7
        query_start_loc 0    1         5   7        S + 1 entries
        seq_lens        9    4         33           tokens seen so far, this step's included
    """

    query_start_loc: NDArray[np.int32]  #: ``[S + 1]``, starts with 0, ends with T
    seq_lens: NDArray[np.int32]  #: ``[S]``
    block_tables: NDArray[np.int32]  #: ``[S, M]``, unused entries 0
    slot_mapping: NDArray[np.int64]  #: ``[T]``, block * B + offset; unique but for those of block 0
    positions: NDArray[np.int64]  #: ``[T]``, absolute position in the sequence
    num_decodes: int
    max_query_len: int
    max_seq_len: int
    causal: bool = True

    @property
    def num_seqs(self) -> int:
        return len(self.seq_lens)

    @property
    def num_tokens(self) -> int:
        return len(self.slot_mapping)
