"""``swap_blocks`` of the backend: checks, then plans, then starts."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import Transfer
from baseboard.kit.pairs import check_swap_pairs
from baseboard.kit.transfer import FinishedTransfer
from baseboard_cuda.cache import PooledKVCache
from baseboard_cuda.swap.lanes import Direction, Lanes, Order
from baseboard_cuda.swap.plan import Descriptors, PlanePair, describe_copies, find_runs


@dataclass(frozen=True, slots=True, eq=False)
class Swap:
    """Blocks to move from one cache to another; checked."""

    source: PooledKVCache
    destination: PooledKVCache
    pairs: NDArray[np.int64]

    def copies(self) -> Descriptors:
        planes = [
            PlanePair(a.data_ptr(), b.data_ptr(), a.shape[1])
            for a, b in zip(self.source.planes, self.destination.planes, strict=True)
        ]
        return describe_copies(find_runs(self.pairs), planes)


class Swapper(Protocol):
    """Starts swaps on a device."""

    def start(self, swap: Swap) -> Transfer: ...
    def close(self) -> None:
        """Wait for what is under way, as far as the device still answers."""
        ...


def checked_swap(source: PooledKVCache, destination: PooledKVCache, pairs: NDArray[np.int64]) -> Swap:
    """``ValueError`` for caches that are no pair and for ids as :func:`check_swap_pairs` says."""
    if source is destination:
        raise ValueError("source and destination are one cache: use copy_blocks")
    sizes = [[plane.shape[1] for plane in cache.planes] for cache in (source, destination)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"the planes differ: {sizes[0]} bytes a block in the source, {sizes[1]} in the destination")
    return Swap(source, destination, check_swap_pairs(pairs, source.num_blocks, destination.num_blocks))


@dataclass(frozen=True, slots=True)
class LaneSwapper:
    """By DMA, on streams of its own. One of the two caches is on the device, the other one on the host."""

    lanes: Lanes

    def start(self, swap: Swap) -> Transfer:
        to_device = swap.source.pool.device.type == "cpu"
        if to_device == (swap.destination.pool.device.type == "cpu"):
            raise ValueError("both caches are on the same side: a swap is between device and host")
        if not len(swap.pairs):
            return FinishedTransfer(0)
        host = swap.source if to_device else swap.destination
        return self.lanes.start(
            Order(
                copies=swap.copies(),
                direction=Direction.TO_DEVICE if to_device else Direction.TO_HOST,
                source_blocks=_addresses(swap.source, swap.pairs[:, 0]),
                destination_blocks=_addresses(swap.destination, swap.pairs[:, 1]),
                pinned=host.pinned,
                keep=swap,
            )
        )

    def close(self) -> None:
        self.lanes.close()


class HostSwapper:
    """For the interpreter, whose device is the host: the same copies, done before the call returns."""

    def start(self, swap: Swap) -> Transfer:
        copies = swap.copies()
        for destination, source, nbytes in zip(
            copies.destination.tolist(), copies.source.tolist(), copies.nbytes.tolist(), strict=True
        ):
            ctypes.memmove(destination, source, nbytes)
        return FinishedTransfer(copies.total_nbytes)

    def close(self) -> None:
        """Nothing is under way."""


def _addresses(cache: PooledKVCache, blocks: NDArray[np.int64]) -> NDArray[np.uint64]:
    plane = cache.planes[0]
    return np.uint64(plane.data_ptr()) + blocks.astype(np.uint64) * np.uint64(plane.shape[1])
