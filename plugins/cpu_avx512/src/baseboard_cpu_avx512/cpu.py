"""The CPU as the system describes it: name, cores that this process may use, NUMA nodes. No torch."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from baseboard.kit.procfs import read_lines


@dataclass(frozen=True, slots=True)
class Cpu:
    """What there is for this process."""

    name: str
    machine: str
    allowed: tuple[int, ...]  #: logical CPUs in the process's affinity
    cores: tuple[int, ...]  #: of these, one for each physical core: its SMT siblings are left out
    nodes: tuple[int, ...]  #: NUMA nodes of the cores

    def describe_cores(self) -> str:
        return f"{_listed(self.cores)} ({len(self.cores)} of {len(self.allowed)} logical CPUs allowed)"

    def describe_nodes(self) -> str:
        return _listed(self.nodes) or "unknown"


def read_cpu(root: Path = Path("/")) -> Cpu:
    """The CPU now. Never raises. ``root`` is where ``/proc`` and ``/sys`` are found; tests give another."""
    allowed = _allowed()
    cores = tuple(sorted({_first_sibling(root, cpu, allowed) for cpu in allowed}))
    nodes = tuple(sorted({node for cpu in cores for node in _nodes(root, cpu)}))
    return Cpu(_name(root), platform.machine(), allowed, cores, nodes)


def _allowed() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _first_sibling(root: Path, cpu: int, allowed: tuple[int, ...]) -> int:
    """The lowest of the allowed CPUs that share a physical core with ``cpu``."""
    lines = read_lines(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    siblings = set(_numbers(lines[0])) if lines else {cpu}
    return min((siblings | {cpu}) & set(allowed))


def _nodes(root: Path, cpu: int) -> Iterator[int]:
    folder = root / f"sys/devices/system/cpu/cpu{cpu}"
    return (int(entry.name.removeprefix("node")) for entry in folder.glob("node[0-9]*"))


def _numbers(text: str) -> Iterator[int]:
    """``"0-2,5"`` as 0, 1, 2, 5."""
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


def _name(root: Path) -> str:
    lines = read_lines(root / "proc/cpuinfo")
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
