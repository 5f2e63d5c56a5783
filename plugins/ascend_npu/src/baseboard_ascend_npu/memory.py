"""Memory of one NPU, as the driver and torch_npu's allocator count it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from baseboard.contract import MemorySnapshot
from baseboard.kit.pool import DeviceMemory
from baseboard_ascend_npu.device_module import npu


def snapshot(device: torch.device) -> MemorySnapshot:
    """Now. What the driver has given to others, or to this process past the allocator, is missing in ``free`` alone."""
    free, total = npu.mem_get_info(device)
    stats = npu.memory_stats(device)
    allocated = stats.get("allocated_bytes.all.current", 0)
    peak = stats.get("allocated_bytes.all.peak", 0)
    return MemorySnapshot(total, free, allocated, max(peak, allocated), stats.get("reserved_bytes.all.current", 0))


@dataclass(frozen=True, slots=True)
class NpuMemory:
    """A :class:`baseboard.kit.pool.Memory` of one NPU."""

    device: torch.device

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return DeviceMemory(self.device).zeros(shape, dtype)

    def require(self, nbytes: int) -> None:
        """Raise ``torch.OutOfMemoryError`` for more than the whole NPU has."""
        total = npu.mem_get_info(self.device)[1]
        if nbytes > total:
            raise torch.OutOfMemoryError(f"{nbytes:,} bytes do not fit: the NPU has {total:,} bytes of memory in all")
