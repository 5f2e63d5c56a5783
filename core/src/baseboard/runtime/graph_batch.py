"""Decode steps in the shapes of recorded ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import BackendHooks, StepBatch
from baseboard.runtime.step_batch import BatchLimits, StepBuffers

#: There is a size for every so many sequences, and for fewer where a block is smaller.
_STEP: Final = 8
#: Larger steps take the device longer than telling them takes the host.
_MOST: Final = 256


def graph_sizes(limits: BatchLimits) -> tuple[int, ...]:
    """Numbers of sequences for which a step is recorded: 1, 2, 4, 8, 16, 24 and so on, up to the largest step or 256.

    The padding that a step needs is less than a block, so that each padding token has a slot of the null block for
    itself.
    """
    most = min(limits.max_seqs, limits.max_tokens, _MOST)
    step = min(_STEP, limits.block_size)
    return tuple(sorted({size for size in (1, 2, 4, *range(step, most, step)) if size < most} | {most}))


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """A decode step's arrays."""

    batch: StepBatch
    token_ids: NDArray[np.int64]  #: ``[T]``


class DecodePadder:
    """Copies decode steps into arrays of fixed shapes: two sets in turn, a device may still read the other."""

    def __init__(self, hook: BackendHooks, limits: BatchLimits) -> None:
        self._limits: Final = limits
        self._pair = (StepBuffers(hook, limits), StepBuffers(hook, limits))
        for buffers in self._pair:
            buffers.query_start_loc[:] = np.arange(limits.max_seqs + 1)

    def pad(self, step: DecodeBatch, size: int) -> DecodeBatch:
        """``step`` with padding to ``size`` sequences: token 0 of a sequence of its own, kept in the null block."""
        return self._written(step, step.batch.num_seqs, size)

    def nothing(self, size: int) -> DecodeBatch:
        """Padding alone. It is kept in the first blocks, which must not be anybody's yet."""
        none = np.zeros(0, dtype=np.int64)
        empty = StepBatch(np.zeros(1, np.int32), none.astype(np.int32), np.zeros((0, 0), np.int32), none, none, 0, 0, 0)
        return self._written(DecodeBatch(empty, none), 0, size)

    def _written(self, step: DecodeBatch, count: int, size: int) -> DecodeBatch:
        self._pair = self._pair[::-1]
        buffers, given = self._pair[0], step.batch
        tables = buffers.block_tables[: size * self._limits.max_blocks].reshape(size, self._limits.max_blocks)
        tables[:] = 0
        tables[:count, : given.block_tables.shape[1]] = given.block_tables
        buffers.seq_lens[:count], buffers.seq_lens[count:size] = given.seq_lens, 1
        buffers.positions[:count], buffers.positions[count:size] = given.positions, 0
        buffers.slot_mapping[:count], buffers.slot_mapping[count:size] = given.slot_mapping, np.arange(size - count)
        buffers.token_ids[:count], buffers.token_ids[count:size] = step.token_ids, 0
        batch = StepBatch(
            query_start_loc=buffers.query_start_loc[: size + 1],
            seq_lens=buffers.seq_lens[:size],
            block_tables=tables,
            slot_mapping=buffers.slot_mapping[:size],
            positions=buffers.positions[:size],
            num_decodes=size,
            max_query_len=1,
            max_seq_len=max(1, given.max_seq_len),
        )
        return DecodeBatch(batch, buffers.token_ids[:size])
