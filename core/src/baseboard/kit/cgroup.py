"""Memory limits that Linux control groups put on this process, versions 1 and 2. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from baseboard.kit.procfs import read_counters, read_integer, read_lines


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """One group above this process, in bytes."""

    limit: int
    used: int  #: by all processes of the group, without page cache that the kernel can drop


@dataclass(frozen=True, slots=True)
class _Layout:
    """What one version of control groups calls its files."""

    limits: tuple[str, ...]
    usage: str
    droppable: str  #: key in memory.stat
    inherited_limit: str | None  #: key in memory.stat of the limit of groups that may lie out of sight


_V1 = _Layout(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file", "hierarchical_memory_limit")
# memory.high does not kill, but the kernel slows down whoever is above it until it is below again.
_V2 = _Layout(("memory.max", "memory.high"), "memory.current", "inactive_file", None)


@dataclass(frozen=True, slots=True)
class _Mount:
    layout: _Layout
    root: PurePosixPath  #: the group that is visible at ``point``
    point: PurePosixPath


def limited_groups(root: Path) -> list[GroupMemory]:
    """Groups with a limit that this process is in: its own and all above it that can be seen below ``root``.

    ``root`` is where ``/proc`` and ``/sys`` are found, ``/`` but for tests. Whatever is missing limits nothing.
    """
    paths = dict(_process_groups(root))
    groups: list[GroupMemory] = []
    for mount in _mounts(root):
        path = paths.get(mount.layout.usage)
        if path is not None:
            folders = (_below(root, folder) for folder in _folders(mount, path))
            groups.extend(group for folder in folders for group in _group(folder, mount.layout))
    return groups


def _process_groups(root: Path) -> Iterator[tuple[str, PurePosixPath]]:
    """The process's group in each hierarchy that may hold memory limits."""
    for line in read_lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield _V2.usage, PurePosixPath(path)
        elif "memory" in controllers.split(","):
            yield _V1.usage, PurePosixPath(path)


def _mounts(root: Path) -> Iterator[_Mount]:
    for line in read_lines(root / "proc/self/mountinfo"):
        place, _, kind = line.partition(" - ")
        mount_root, point = (PurePosixPath(text) for text in place.split()[3:5])
        filesystem, _, options = kind.split(maxsplit=2)
        if filesystem == "cgroup2":
            yield _Mount(_V2, mount_root, point)
        elif filesystem == "cgroup" and "memory" in options.split(","):
            yield _Mount(_V1, mount_root, point)


def _folders(mount: _Mount, path: PurePosixPath) -> Iterator[PurePosixPath]:
    """The folders of the process's group and of those above it, up to the mount point."""
    # In a container the mount may show only a part of the tree; a group outside that part cannot be seen, and the
    # mount point is the nearest thing to it.
    if not path.is_relative_to(mount.root):
        yield mount.point
        return
    folder = mount.point / path.relative_to(mount.root)
    yield folder
    while folder != mount.point:
        folder = folder.parent
        yield folder


def _group(folder: Path, layout: _Layout) -> Iterator[GroupMemory]:
    statistics = read_counters(folder / "memory.stat")
    limits = [read_integer(folder / name) for name in layout.limits]
    if layout.inherited_limit is not None:
        limits.append(statistics.get(layout.inherited_limit))
    known = [limit for limit in limits if limit is not None]
    usage = read_integer(folder / layout.usage)
    if known and usage is not None:
        yield GroupMemory(min(known), max(0, usage - statistics.get(layout.droppable, 0)))


def _below(root: Path, path: PurePosixPath) -> Path:
    return root / path.relative_to("/")
