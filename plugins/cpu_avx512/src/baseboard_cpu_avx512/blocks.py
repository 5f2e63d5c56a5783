"""Moves of whole blocks: copies and zeros at once, swaps on a thread of their own."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import KVCache, Transfer
from baseboard.kit.pairs import check_blocks, check_copy_pairs, check_swap_pairs
from baseboard.kit.transfer import FinishedTransfer
from baseboard_cpu_avx512.structures import MoveArgs


@dataclass(frozen=True, slots=True)
class RunningTransfer:
    """A swap on the mover's thread. On a CPU the compute stream is the host itself: both ways of waiting are one."""

    nbytes: int
    landing: Future[None]

    def done(self) -> bool:
        return self.landing.done()

    def wait(self) -> None:
        self.landing.result()

    def wait_on_stream(self) -> None:
        self.landing.result()


class BlockMover:
    """Owner of the swap thread, which is started by the first swap. One thread: first in, first out."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library: Final = library
        self._swaps: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="baseboard-swap")

    def copy(self, cache: KVCache, pairs: NDArray[np.int64], threads: int) -> None:
        """Copy blocks within ``cache``; done on return. ``ValueError`` as ``check_copy_pairs`` says."""
        ids = check_copy_pairs(pairs, cache.num_blocks)
        self._move(cache.planes, cache.planes, ids, threads)

    def swap(self, source: KVCache, destination: KVCache, pairs: NDArray[np.int64]) -> Transfer:
        """Start moving blocks between two caches with the same planes. ``ValueError`` before anything is moved."""
        if source is destination:
            raise ValueError("source and destination are one cache: use copy_blocks")
        sizes = [[plane.shape[1] for plane in cache.planes] for cache in (source, destination)]
        if sizes[0] != sizes[1]:
            raise ValueError(f"the planes differ: {sizes[0]} bytes a block in the source, {sizes[1]} in the other")
        ids = check_swap_pairs(pairs, source.num_blocks, destination.num_blocks)
        nbytes = len(ids) * sum(sizes[0])
        if not len(ids):
            return FinishedTransfer(nbytes)
        return RunningTransfer(nbytes, self._swaps.submit(self._move, source.planes, destination.planes, ids, 1))

    def zero(self, cache: KVCache, blocks: NDArray[np.int64], threads: int) -> None:
        """Fill blocks with zeros; done on return. ``ValueError`` for ids out of range."""
        ids = check_blocks(blocks, cache.num_blocks)
        self._move(None, cache.planes, np.stack((ids, ids), axis=1), threads)

    def close(self) -> None:
        """Wait for the swaps under way and end their thread."""
        self._swaps.shutdown()

    def _move(
        self,
        source: Sequence[torch.Tensor] | None,
        destination: Sequence[torch.Tensor],
        pairs: NDArray[np.int64],
        threads: int,
    ) -> None:
        ids = np.ascontiguousarray(pairs)
        for index, to in enumerate(destination):
            origin = None if source is None else source[index]
            args = MoveArgs(
                source=None if origin is None else origin.data_ptr(),
                destination=to.data_ptr(),
                source_stride=0 if origin is None else origin.stride(0),
                destination_stride=to.stride(0),
                nbytes=to.shape[1],
                pairs=ids.ctypes.data,
                count=len(ids),
                threads=threads,
            )
            self._library.bb_move_blocks(args)
