"""A KV cache made of byte planes, and the block moves that need no more than these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import KVCache, KVCacheSpec
from baseboard.kit.pairs import check_blocks, check_copy_pairs, check_swap_pairs
from baseboard.kit.transfer import FinishedTransfer

_WORD: Final = torch.int64


@dataclass(frozen=True, slots=True, eq=False)
class PlanarKVCache:
    """A :class:`baseboard.contract.KVCache`: planes, and for each layer what its kernel wants to see of them.

    ::

        plane 0   | block 0 | block 1 | block 2 | ...      uint8 [num_blocks, nbytes of a block in this plane]
        plane 1   | block 0 | block 1 | block 2 | ...
                    `- views of these are the layers' tokens, in whatever shape the kernel likes
    """

    spec: KVCacheSpec
    planes: tuple[torch.Tensor, ...]
    layers: tuple[Any, ...]

    @property
    def num_blocks(self) -> int:
        return self.planes[0].shape[0]

    @property
    def device(self) -> torch.device:
        return self.planes[0].device

    def layer(self, index: int) -> Any:
        return self.layers[index]


def copy_blocks(cache: KVCache, pairs: NDArray[np.int64]) -> None:
    """Copy blocks within ``cache`` in all planes, bit by bit, enqueued on the current stream.

    ``pairs`` ``[n, 2]`` (source, destination); ``ValueError`` as :func:`baseboard.kit.pairs.check_copy_pairs` says.
    """
    _move(cache, cache, check_copy_pairs(pairs, cache.num_blocks))


def swap_blocks(source: KVCache, destination: KVCache, pairs: NDArray[np.int64]) -> FinishedTransfer:
    """Move blocks between two caches that have the same planes, in device or host memory; done on return.

    ``ValueError`` as :func:`baseboard.kit.pairs.check_swap_pairs` says, or when the two are not a pair.
    """
    if source is destination:
        raise ValueError("source and destination are one cache: use copy_blocks")
    sizes = [[plane.shape[1] for plane in cache.planes] for cache in (source, destination)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"the planes differ: {sizes[0]} bytes a block in the source, {sizes[1]} in the destination")
    ids = check_swap_pairs(pairs, source.num_blocks, destination.num_blocks)
    _move(source, destination, ids)
    return FinishedTransfer(len(ids) * sum(sizes[0]))


def zero_blocks(cache: KVCache, blocks: NDArray[np.int64]) -> None:
    """Fill ``blocks`` ``[n]`` with zeros in all planes. ``ValueError`` naming ids that are out of range."""
    ids = torch.from_numpy(check_blocks(blocks, cache.num_blocks))
    for plane in cache.planes:
        plane.index_fill_(0, ids.to(plane.device), 0)


def _move(source: KVCache, destination: KVCache, ids: NDArray[np.int64]) -> None:
    columns = torch.from_numpy(np.ascontiguousarray(ids.T))
    from_ids = columns[0].to(source.planes[0].device)
    to_ids = columns[1].to(destination.planes[0].device)
    for from_plane, to_plane in zip(source.planes, destination.planes, strict=True):
        dtype = _WORD if _has_words(from_plane) and _has_words(to_plane) else torch.uint8
        moved = from_plane.view(dtype).index_select(0, from_ids).to(to_plane.device)
        to_plane.view(dtype).index_copy_(0, to_ids, moved)


def _has_words(plane: torch.Tensor) -> bool:
    """Whether every block starts and ends at a word: then it can be moved by words, several times as fast."""
    return all(size % _WORD.itemsize == 0 for size in (plane.shape[1], plane.stride(0), plane.storage_offset()))
