"""How much host memory this process may use: the machine's, or less in a container. No torch.

::

    machine      MemTotal, MemAvailable                         /proc/meminfo
    └── group    limit, usage less droppable page cache         /sys/fs/cgroup, version 1 or 2
        └── group                                               each can only make it less
            └── this process
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from baseboard.kit.cgroup import limited_groups
from baseboard.kit.procfs import read_counters


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes that this process may use in all, and that are left. Both 0 where the system does not tell."""

    total: int
    free: int


def read_host_memory(root: Path = Path("/")) -> HostMemory:
    """Host memory now. Never raises. ``root`` is where ``/proc`` and ``/sys`` are found; tests give another.

    Where there is no ``/proc/meminfo`` (macOS), ``total`` is the machine's physical memory and ``free`` is the same:
    nothing better is to be had without a compiled helper.
    """
    machine = _machine(root)
    groups = limited_groups(root)
    total = min([machine.total, *(group.limit for group in groups)])
    free = min([total, machine.free, *(group.limit - group.used for group in groups)])
    return HostMemory(total, max(0, free))


def _machine(root: Path) -> HostMemory:
    meminfo = read_counters(root / "proc/meminfo")
    if "MemTotal" not in meminfo:
        physical = _physical_memory()
        return HostMemory(physical, physical)
    droppable = meminfo.get("Buffers", 0) + meminfo.get("Cached", 0)  # kernels before 3.14 have no MemAvailable
    return HostMemory(meminfo["MemTotal"], meminfo.get("MemAvailable", meminfo.get("MemFree", 0) + droppable))


def _physical_memory() -> int:
    names = getattr(os, "sysconf_names", {})
    if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(names):
        return 0
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
