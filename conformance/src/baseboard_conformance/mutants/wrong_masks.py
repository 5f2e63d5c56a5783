"""Wrong attention: which keys are seen, which blocks are read, which heads share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard_conformance.bench import to_torch
from baseboard_conformance.mutants.plain import PlainBackend
from baseboard_conformance.mutants.plain_kernel import Layer, Metadata, PlainKernel

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]


class CausalMissesOwn(PlainBackend):
    """A query does not see its own key."""

    class Kernel(PlainKernel):
        def before(self, p: Ids, j: Ids) -> Mask:
            return (j < p) | ((p == 0) & (j == 0))


class CausalSeesNext(PlainBackend):
    """A query sees one key of the future."""

    class Kernel(PlainKernel):
        def before(self, p: Ids, j: Ids) -> Mask:
            return j <= p + 1


class CausalTopLeft(PlainBackend):
    """The mask of a chunk starts at key 0."""

    class Kernel(PlainKernel):
        def before(self, p: Ids, j: Ids) -> Mask:
            return j <= p - p.min()


class NoCausalMask(PlainBackend):
    """A query sees the whole sequence."""

    class Kernel(PlainKernel):
        def before(self, p: Ids, j: Ids) -> Mask:
            return np.full(np.broadcast_shapes(p.shape, j.shape), fill_value=True)


class ChunkForgetsHistory(PlainBackend):
    """A chunk attends to its own tokens only."""

    class Kernel(PlainKernel):
        def before(self, p: Ids, j: Ids) -> Mask:
            return (j <= p) & ((j >= p.min()) | (len(p) == 1))


class FirstTokenDropped(PlainBackend):
    """Key 0 is never read."""

    class Kernel(PlainKernel):
        def key_positions(self, metadata: Metadata, sequence: int) -> Ids:
            length = int(metadata.lengths[sequence])
            return np.arange(min(1, length - 1), length)


class LastTokenDropped(PlainBackend):
    """In long sequences the last key is not read: small enough for a fixed tolerance."""

    class Kernel(PlainKernel):
        def key_positions(self, metadata: Metadata, sequence: int) -> Ids:
            length = int(metadata.lengths[sequence])
            return np.arange(length - 1 if length > 1024 else length)


class FirstBlockDropped(PlainBackend):
    """In long sequences the first block is not read."""

    class Kernel(PlainKernel):
        def key_positions(self, metadata: Metadata, sequence: int) -> Ids:
            length = int(metadata.lengths[sequence])
            return np.arange(metadata.block_size if length > 1024 else 0, length)


class PartialBlockDropped(PlainBackend):
    """A last block that is not full is not read."""

    class Kernel(PlainKernel):
        def key_positions(self, metadata: Metadata, sequence: int) -> Ids:
            length = int(metadata.lengths[sequence])
            return np.arange(length // metadata.block_size * metadata.block_size or length)


class InterleavedHeads(PlainBackend):
    """Query head h reads KV head h % Hkv."""

    class Kernel(PlainKernel):
        def per_head(self, rows: torch.Tensor) -> torch.Tensor:
            return rows.repeat(1, self.spec.num_heads // self.spec.num_kv_heads, 1)


class ManyHeadsShareFirst(PlainBackend):
    """With more than eight query heads per KV head the second KV head is never read."""

    class Kernel(PlainKernel):
        def per_head(self, rows: torch.Tensor) -> torch.Tensor:
            wide = self.spec.num_heads > 8 * self.spec.num_kv_heads
            return super().per_head(rows[:, :1].expand(rows.shape) if wide else rows)


class WindowOneMore(PlainBackend):
    """The window shows one key too many."""

    class Kernel(PlainKernel):
        def window(self, metadata: Metadata) -> int | None:
            return None if self.spec.sliding_window is None else self.spec.sliding_window + 1


class WindowOneLess(PlainBackend):
    """The window shows one key too few."""

    class Kernel(PlainKernel):
        def window(self, metadata: Metadata) -> int | None:
            return None if self.spec.sliding_window is None else max(1, self.spec.sliding_window - 1)


class WindowNotInDecode(PlainBackend):
    """The decode path has no window."""

    class Kernel(PlainKernel):
        def window(self, metadata: Metadata) -> int | None:
            return None if len(metadata.lengths) == metadata.starts[-1] else self.spec.sliding_window


class WindowNotInPrefill(PlainBackend):
    """The prefill path has no window."""

    class Kernel(PlainKernel):
        def window(self, metadata: Metadata) -> int | None:
            return self.spec.sliding_window if len(metadata.lengths) == metadata.starts[-1] else None


class StaleBlock(PlainBackend):
    """The second block of a sequence is the one that the same row had a step before."""

    class Kernel(PlainKernel):
        def table(self, metadata: Metadata, sequence: int) -> Ids:
            table = metadata.tables[sequence].copy()
            if len(table) > 1 and metadata.lengths[sequence] > metadata.block_size:
                table[1] = table[0]
            return table


class SortedBlocks(PlainBackend):
    """Blocks are read in the order of their ids."""

    class Kernel(PlainKernel):
        def table(self, metadata: Metadata, sequence: int) -> Ids:
            used = -(-int(metadata.lengths[sequence]) // metadata.block_size)
            return np.concatenate([np.sort(metadata.tables[sequence][:used]), metadata.tables[sequence][used:]])


class Block48(PlainBackend):
    """Declares block size 48 and reads it as blocks of 32."""

    can = replace(PlainBackend.can, block_sizes=(*PlainBackend.can.block_sizes, 48))

    class Kernel(PlainKernel):
        def key_slots(self, metadata: Metadata, sequence: int, positions: Ids) -> torch.Tensor:
            size = 32 if metadata.block_size == 48 else metadata.block_size
            blocks = self.table(metadata, sequence)[np.minimum(positions // size, metadata.tables.shape[1] - 1)]
            return to_torch(blocks * metadata.block_size + positions % size)


class SingleTokenChunkIsPadding(PlainBackend):
    """Behind a longer chunk a sequence of one token is taken for padding: its row stays zero."""

    class Kernel(PlainKernel):
        def attend(
            self, query: torch.Tensor, layer: Layer, metadata: Metadata, out: torch.Tensor | None = None
        ) -> torch.Tensor:
            result = super().attend(query, layer, metadata, out)
            counts = np.diff(metadata.starts)
            behind = np.maximum.accumulate(counts) > counts
            for sequence in np.flatnonzero(behind & (counts == 1)):
                result[int(metadata.starts[sequence])] = 0
            return result
