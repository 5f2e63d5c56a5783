"""From the columns of a plan to the index arrays of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import BackendHooks, StepBatch, StepPlan
from baseboard.runtime.rows import Row, RowTable


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The largest step."""

    max_tokens: int
    max_seqs: int
    max_blocks: int  #: per sequence
    block_size: int


@dataclass(frozen=True, slots=True)
class Assembled:
    """A step ready to run. Sequence ``i`` of the batch is row ``order[i]`` of the plan."""

    batch: StepBatch
    order: tuple[int, ...]
    rows: tuple[Row, ...]  #: in batch order
    token_ids: NDArray[np.int64]  #: ``[T]``


class StepBuffers:
    """One set of host arrays, as long as the largest step."""

    def __init__(self, hook: BackendHooks, limits: BatchLimits) -> None:
        def array(length: int, dtype: str) -> NDArray[Any]:
            return hook.allocate_host_buffer(shape=(length,), dtype=dtype)

        self.query_start_loc = array(limits.max_seqs + 1, "int32")
        self.seq_lens = array(limits.max_seqs, "int32")
        self.block_tables = array(limits.max_seqs * limits.max_blocks, "int32")
        self.slot_mapping = array(limits.max_tokens, "int64")
        self.positions = array(limits.max_tokens, "int64")
        self.token_ids = array(limits.max_tokens, "int64")


class BatchBuilder:
    """Writes steps into two sets of buffers in turn: a device may still read the one while the other is filled."""

    def __init__(self, hook: BackendHooks, limits: BatchLimits) -> None:
        self._limits: Final = limits
        self._pair: Final = (StepBuffers(hook, limits), StepBuffers(hook, limits))
        self._turn = 0

    def build(self, plan: StepPlan, table: RowTable) -> Assembled:
        """``plan`` has at least one row, and ``table`` is up to it. Rows of one token come first."""
        buffers = self._next_buffers()
        counts = np.array(plan.counts, dtype=np.int64)
        order = np.argsort(counts != 1, kind="stable")
        rows = tuple([table[plan.ids[i]] for i in order])
        counts = counts[order]
        starts = np.array(plan.starts, dtype=np.int64)[order]
        lines = np.array([row.index for row in rows], dtype=np.int64)

        num_seqs, num_tokens = len(rows), int(counts.sum())
        ends = starts + counts
        bounds = buffers.query_start_loc[: num_seqs + 1]
        bounds[0] = 0
        np.cumsum(counts, out=bounds[1:])
        buffers.seq_lens[:num_seqs] = ends

        # Token t of sequence s has position starts[s] + (t - bounds[s]).
        positions = buffers.positions[:num_tokens]
        positions[:] = np.arange(num_tokens) + np.repeat(starts - bounds[:-1], counts)
        size = self._limits.block_size
        blocks = table.blocks[np.repeat(lines, counts), positions // size].astype(np.int64)
        slots = buffers.slot_mapping[:num_tokens]
        slots[:] = blocks * size + positions % size

        batch = StepBatch(
            query_start_loc=bounds,
            seq_lens=buffers.seq_lens[:num_seqs],
            block_tables=self._tables(buffers, table, lines, int(ends.max())),
            slot_mapping=slots,
            positions=positions,
            num_decodes=int(np.count_nonzero(counts == 1)),
            max_query_len=int(counts.max()),
            max_seq_len=int(ends.max()),
        )
        token_ids = buffers.token_ids[:num_tokens]
        token_ids[:] = np.fromiter(
            (token for row, a, b in zip(rows, starts, ends, strict=True) for token in row.tokens[a:b]),
            dtype=np.int64,
            count=num_tokens,
        )
        return Assembled(batch, tuple(order.tolist()), rows, token_ids)

    def _tables(
        self, buffers: StepBuffers, table: RowTable, lines: NDArray[np.int64], max_len: int
    ) -> NDArray[np.int32]:
        width = -(-max_len // self._limits.block_size)
        out = buffers.block_tables[: len(lines) * width].reshape(len(lines), width)
        out[:] = table.blocks[lines, :width]
        return out

    def _next_buffers(self) -> StepBuffers:
        self._turn = 1 - self._turn
        return self._pair[self._turn]


def padding_batch(num_tokens: int, block_size: int, longest: int) -> StepBatch:
    """A step of ``num_tokens`` tokens that touches the null block only: for measuring, before there is a cache.

    Its sequences have ``longest`` tokens, the last one the rest.
    """
    lengths = [longest] * (num_tokens // longest) + [num_tokens % longest] * (num_tokens % longest > 0)
    lengths.sort()  # a sequence of one token has to come first
    seq_lens = np.array(lengths, dtype=np.int32)
    positions = np.concatenate([np.arange(length, dtype=np.int64) for length in lengths])
    return StepBatch(
        query_start_loc=np.concatenate(([0], np.cumsum(seq_lens))).astype(np.int32),
        seq_lens=seq_lens,
        block_tables=np.zeros((len(lengths), -(-max(lengths) // block_size)), dtype=np.int32),
        slot_mapping=positions % block_size,
        positions=positions,
        num_decodes=lengths.count(1),
        max_query_len=max(lengths),
        max_seq_len=max(lengths),
    )
