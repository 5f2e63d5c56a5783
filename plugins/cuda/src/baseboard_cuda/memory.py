"""Memory meters: of a GPU, of a GPU that shares the host's memory, and of the host."""

from __future__ import annotations

from typing import Final, Protocol

import torch

from baseboard.contract import MemorySnapshot
from baseboard.kit.host_memory import read_host_memory
from baseboard.kit.process_memory import ProcessMemory


class MemoryMeter(Protocol):
    def snapshot(self) -> MemorySnapshot: ...
    def reset_peak(self) -> None: ...
    def empty_cache(self) -> None: ...


class GpuMeter:
    """What torch's allocator counts, and what the driver says is left: other processes and graphs are in that."""

    def __init__(self, device: torch.device) -> None:
        self._device: Final = device

    def snapshot(self) -> MemorySnapshot:
        free, total = torch.cuda.mem_get_info(self._device)
        allocated = torch.cuda.memory_allocated(self._device)
        peak = max(allocated, torch.cuda.max_memory_allocated(self._device))
        return MemorySnapshot(total, free, allocated, peak, torch.cuda.memory_reserved(self._device))

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()


class SharedMeter(GpuMeter):
    """For a GPU without memory of its own: the driver counts as used what the system would drop at need."""

    def snapshot(self) -> MemorySnapshot:
        shown, host = super().snapshot(), read_host_memory()
        total = min(shown.total, host.total)
        return MemorySnapshot(total, min(total, host.free), shown.allocated, shown.peak, shown.reserved)


class HostMeter:
    """For the interpreter."""

    def __init__(self) -> None:
        self._process: Final = ProcessMemory()

    def snapshot(self) -> MemorySnapshot:
        host, size = read_host_memory(), self._process.read()
        return MemorySnapshot(host.total, host.free, size.current, size.peak, reserved=size.current)

    def reset_peak(self) -> None:
        self._process.reset_peak()

    def empty_cache(self) -> None:
        """Nothing to do: the host's allocator keeps nothing back."""
