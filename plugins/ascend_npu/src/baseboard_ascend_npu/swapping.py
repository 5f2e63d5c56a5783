"""Moves of blocks between device and host: one batch each, on a stream of their own."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import KVCache, Transfer
from baseboard.kit.pairs import check_swap_pairs
from baseboard.kit.transfer import FinishedTransfer
from baseboard_ascend_npu.acl_copy import BatchCopier, BatchNotSupported, CopyList, Place
from baseboard_ascend_npu.device_module import npu
from baseboard_ascend_npu.faults import device_faults


@dataclass(frozen=True, slots=True, eq=False)
class StreamTransfer:
    """A :class:`baseboard.contract.Transfer` on the swap stream. Keeps the memory of both caches in being."""

    nbytes: int
    event: Any  #: torch.npu.Event behind the last copy
    device: torch.device
    caches: tuple[KVCache, KVCache]

    def done(self) -> bool:
        with device_faults():
            return bool(self.event.query())

    def wait(self) -> None:
        with device_faults():
            self.event.synchronize()

    def wait_on_stream(self) -> None:
        with device_faults():
            npu.current_stream(self.device).wait_event(self.event)


@dataclass(frozen=True, slots=True)
class Runs:
    """Block ids that follow each other on both sides, as runs."""

    sources: NDArray[np.int64]  #: first block of each run
    destinations: NDArray[np.int64]
    lengths: NDArray[np.int64]  #: blocks

    @classmethod
    def of(cls, ids: NDArray[np.int64]) -> Runs:
        """Of ``ids`` ``[n, 2]``, n > 0, whose destinations are disjoint."""
        ids = ids[np.lexsort((ids[:, 1], ids[:, 0]))]
        follows = (np.diff(ids, axis=0) == 1).all(axis=1)
        starts = np.flatnonzero(np.concatenate([[True], ~follows]))
        lengths = np.diff(np.append(starts, len(ids)))
        return cls(ids[starts, 0], ids[starts, 1], lengths)


class Swapper:
    """Swaps of one device, first in, first out. Owner: the backend."""

    def __init__(self, device: torch.device) -> None:
        self._device: Final = device
        self._stream: Final[Any] = npu.Stream(device)
        self._in_flight: Final[deque[StreamTransfer]] = deque()
        self._batch: BatchCopier | None = None
        with suppress(BatchNotSupported):  # the loop of single copies does the same, slower
            self._batch = BatchCopier(device.index)

    def swap(self, source: KVCache, destination: KVCache, pairs: NDArray[np.int64]) -> Transfer:
        """Enqueue a swap. ``ValueError`` for caches that are no pair and for wrong ids, with nothing enqueued."""
        to = _direction(source, destination)
        ids = check_swap_pairs(pairs, source.num_blocks, destination.num_blocks)
        if not len(ids):
            return FinishedTransfer(0)
        with device_faults():
            # Out: the copy must read what was computed so far. In: what was enqueued so far may still read the blocks.
            self._stream.wait_stream(npu.current_stream(self._device))
            self._enqueue(source, destination, Runs.of(ids), to)
            event = npu.Event()
            event.record(self._stream)
        nbytes = len(ids) * sum(plane.shape[1] for plane in source.planes)
        transfer = StreamTransfer(nbytes, event, self._device, (source, destination))
        self._remember(transfer)
        return transfer

    def close(self) -> None:
        """Wait for everything under way, and let go of its memory."""
        with device_faults():
            self._stream.synchronize()
        self._in_flight.clear()

    def _remember(self, transfer: StreamTransfer) -> None:
        """Until it has landed its caches must not go away, even if nobody else holds them."""
        while self._in_flight and self._in_flight[0].done():
            self._in_flight.popleft()
        self._in_flight.append(transfer)

    def _enqueue(self, source: KVCache, destination: KVCache, runs: Runs, to: Place) -> None:
        if self._batch is not None:
            try:
                # Reading the handle also empties torch_npu's own queue of work that it has not given to the driver
                # yet: the wait above must be there before a copy that does not pass through that queue.
                self._batch.enqueue(_copy_list(source, destination, runs, to), self._stream.npu_stream)
            except BatchNotSupported:
                self._batch = None
            else:
                return
        with npu.stream(self._stream):
            for into, out_of in zip(destination.planes, source.planes, strict=True):
                for begin, start, length in zip(runs.destinations, runs.sources, runs.lengths, strict=True):
                    into[begin : begin + length].copy_(out_of[start : start + length], non_blocking=True)


def _direction(source: KVCache, destination: KVCache) -> Place:
    sizes = [[plane.shape[1] for plane in cache.planes] for cache in (source, destination)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"the planes differ: {sizes[0]} bytes a block in the source, {sizes[1]} in the destination")
    kinds = [cache.planes[0].device.type for cache in (source, destination)]
    if sorted(kinds) != ["cpu", "npu"]:
        raise ValueError(f"a swap is between the NPU and the host, not from {kinds[0]} to {kinds[1]}")
    return Place.DEVICE if kinds[1] == "npu" else Place.HOST


def _copy_list(source: KVCache, destination: KVCache, runs: Runs, to: Place) -> CopyList:
    """Every run in every plane."""
    sizes = np.array([plane.shape[1] for plane in source.planes])[:, None]
    return CopyList(
        destinations=_addresses(destination, runs.destinations, sizes),
        sources=_addresses(source, runs.sources, sizes),
        sizes=(sizes * runs.lengths).ravel().astype(np.uint64),
        to=to,
    )


def _addresses(cache: KVCache, blocks: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint64]:
    beginnings = np.array([plane.data_ptr() for plane in cache.planes], dtype=np.uint64)[:, None]
    return (beginnings + (sizes * blocks).astype(np.uint64)).ravel()
