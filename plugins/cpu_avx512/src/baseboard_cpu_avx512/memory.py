"""Memory for KV pools: mapped, on huge pages where the system gives them, refused when it could not be backed."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Sequence
from typing import Final

import torch

from baseboard.contract import MemorySnapshot
from baseboard.kit.host_memory import read_host_memory
from baseboard.kit.process_memory import ProcessMemory

_HUGE_PAGE: Final = 1 << 21
_ADDRESSABLE: Final = 1 << 46  #: half of the address space of a process, with room to spare


class PoolMemory:
    """Makes pools and knows how much it has promised.

    Linux hands out address space without memory behind it and kills the process that fills it. So a pool is refused
    when it does not fit into what is free now, or when it and the pools before it, which may not have been filled yet,
    do not fit into what this process may use at all.
    """

    def __init__(self) -> None:
        self._promised: Final[dict[int, int]] = {}  # bytes of each living pool

    def planes(self, num_blocks: int, plane_nbytes: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """Planes uint8 ``[num_blocks, nbytes]``, zero-filled; no page of them is touched yet.

        ``ValueError`` when there is no block; ``torch.OutOfMemoryError`` when all planes together do not fit.
        """
        if num_blocks < 1:
            raise ValueError(f"num_blocks={num_blocks} is not allowed: a pool has at least the null block")
        self._require(num_blocks * sum(plane_nbytes))
        return tuple(self._plane(num_blocks, nbytes) for nbytes in plane_nbytes)

    def _require(self, nbytes: int) -> None:
        memory = read_host_memory()
        promised = sum(self._promised.values())
        if nbytes > min(memory.free, memory.total - promised, _ADDRESSABLE):
            raise torch.OutOfMemoryError(
                f"a KV pool of {nbytes:,} bytes does not fit: {memory.free:,} of {memory.total:,} bytes are free, "
                f"and {promised:,} are promised to other pools"
            )

    def _plane(self, num_blocks: int, nbytes: int) -> torch.Tensor:
        size = num_blocks * nbytes
        # A huge page can only lie where one begins: room to move the start there.
        room = size + _HUGE_PAGE if size >= _HUGE_PAGE else max(size, 1)
        try:
            mapped = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            raise torch.OutOfMemoryError(f"{room:,} bytes of address space cannot be had: {error}") from error
        _advise_huge_pages(mapped)
        whole = torch.frombuffer(mapped, dtype=torch.uint8)
        start = -whole.data_ptr() % _HUGE_PAGE if size >= _HUGE_PAGE else 0
        key = id(mapped)
        self._promised[key] = size
        weakref.finalize(mapped, self._promised.pop, key)
        return whole[start : start + size].view(num_blocks, nbytes)


class HostMeter:
    """Memory of this machine or container, and of this process in it."""

    def __init__(self) -> None:
        self._process: Final = ProcessMemory()

    def snapshot(self) -> MemorySnapshot:
        host = read_host_memory()
        size = self._process.read()
        return MemorySnapshot(host.total, host.free, size.current, size.peak, reserved=size.current)

    def reset_peak(self) -> None:
        self._process.reset_peak()


def _advise_huge_pages(mapped: mmap.mmap) -> None:
    """Ask for huge pages; a kernel without them says no, and small pages it is."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            mapped.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            return
