"""Moves of whole blocks within the device, enqueued on the current stream."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import KVCache
from baseboard.kit.pairs import check_blocks, check_copy_pairs
from baseboard_ascend_npu.host import Upload


def copy_blocks(cache: KVCache, pairs: NDArray[np.int64], upload: Upload) -> None:
    """Bit by bit in all planes. ``ValueError`` as :func:`baseboard.kit.pairs.check_copy_pairs` says."""
    ids = check_copy_pairs(pairs, cache.num_blocks)
    if not len(ids):
        return
    sources, destinations = upload(np.ascontiguousarray(ids.T))
    for plane in _words(cache):
        plane.index_copy_(0, destinations, plane.index_select(0, sources))


def zero_blocks(cache: KVCache, blocks: NDArray[np.int64], upload: Upload) -> None:
    """Zeros in all planes. ``ValueError`` naming ids that are out of range."""
    ids = check_blocks(blocks, cache.num_blocks)
    if not len(ids):
        return
    indices = upload(ids)
    for plane in _words(cache):
        plane.index_fill_(0, indices, 0)


def _words(cache: KVCache) -> Iterator[torch.Tensor]:
    """The planes as 32-bit words: a block is a multiple of 16 rows of 16 numbers, and the NPU is slow with bytes."""
    return (plane.view(torch.int32) for plane in cache.planes)
