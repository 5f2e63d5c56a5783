"""Memory of one NPU, as the driver and torch_npu's allocator count it."""

from __future__ import annotations

import torch

from baseboard.contract import MemorySnapshot
from baseboard_ascend_npu.device_module import npu


def snapshot(device: torch.device) -> MemorySnapshot:
    """Now. What the driver has given to others, or to this process past the allocator, is missing in ``free`` alone."""
    free, total = npu.mem_get_info(device)
    stats = npu.memory_stats(device)
    allocated = stats.get("allocated_bytes.all.current", 0)
    peak = stats.get("allocated_bytes.all.peak", 0)
    return MemorySnapshot(total, free, allocated, max(peak, allocated), stats.get("reserved_bytes.all.current", 0))
