"""The reader of host memory against made-up /proc and /sys trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from baseboard.kit.host_memory import HostMemory, read_host_memory

GIB = 1 << 30
MEMINFO = f"MemTotal:       {16 * GIB // 1024} kB\nMemFree:  1048576 kB\nMemAvailable:   {12 * GIB // 1024} kB\n"
V2_MOUNT = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
OTHER_V1_MOUNT = "33 31 0:30 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(path: str, limit: str, used: int = 0, inactive_file: int = 0, **more: str) -> dict[str, str]:
    folder = f"sys/fs/cgroup{path}"
    stat = f"anon 5\nfile {inactive_file + 7}\ninactive_file {inactive_file}\nactive_file 7\n"
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{used}\n",
        f"{folder}/memory.stat": stat,
        **{f"{folder}/memory.{name}": f"{text}\n" for name, text in more.items()},
    }


def v1(
    path: str, limit: int, used: int = 0, inactive_file: int = 0, hierarchical: int = 2**63 - 4096
) -> dict[str, str]:
    folder = f"sys/fs/cgroup/memory{path}"
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{used}\n",
        f"{folder}/memory.stat": (
            f"inactive_file 1\nhierarchical_memory_limit {hierarchical}\ntotal_inactive_file {inactive_file}\n"
        ),
    }


def process(path: str, mounts: str = V2_MOUNT) -> dict[str, str]:
    return {"proc/self/cgroup": path, "proc/self/mountinfo": mounts}


NO_LIMIT_V1 = 2**63 - 4096


@pytest.mark.parametrize(
    ("files", "total", "free"),
    [
        pytest.param({}, 16, 12, id="no groups"),
        pytest.param(process("0::/a\n"), 16, 12, id="groups without files"),
        pytest.param(process("0::/a\n") | v2("/a", "max", 3 * GIB), 16, 12, id="no limit"),
        pytest.param(process("0::/a\n") | v2("/a", str(8 * GIB), 3 * GIB), 8, 5, id="a limit"),
        pytest.param(process("0::/a\n") | v2("/a", str(8 * GIB), 3 * GIB, 2 * GIB), 8, 7, id="page cache can go"),
        pytest.param(process("0::/a\n") | v2("/a", str(8 * GIB), GIB, 2 * GIB), 8, 8, id="no more than all is free"),
        pytest.param(process("0::/a\n") | v2("/a", str(15 * GIB), 0), 15, 12, id="the machine has less left"),
        pytest.param(process("0::/a\n") | v2("/a", str(64 * GIB), 0), 16, 12, id="a limit above the machine"),
        pytest.param(process("0::/a\n") | v2("/a", str(2 * GIB), 3 * GIB), 2, 0, id="over the limit"),
        pytest.param(process("0::/a\n") | v2("/a", "max", GIB, high=str(4 * GIB)), 4, 3, id="throttled above"),
        pytest.param(
            process("0::/a/b/c\n")
            | v2("/a", str(8 * GIB), 7 * GIB)
            | v2("/a/b", str(4 * GIB), GIB)
            | v2("/a/b/c", "max"),
            4,
            1,
            id="the parent is tighter, the grandparent fuller",
        ),
        pytest.param(process("0::/a/b\n") | v2("/a/x", str(GIB)) | v2("/a/b", "max"), 16, 12, id="not a sibling's"),
        pytest.param(
            process("0::/docker/d1/b\n", V2_MOUNT.replace(" / /sys", " /docker/d1 /sys")) | v2("/b", str(2 * GIB), GIB),
            2,
            1,
            id="a part of the tree is mounted",
        ),
        pytest.param(
            process("0::/docker/d1\n", V2_MOUNT.replace(" / /sys", " /docker/d2 /sys")) | v2("", str(2 * GIB), GIB),
            2,
            1,
            id="another part of the tree is mounted",
        ),
        pytest.param(process("0::/../outside\n") | v2("", str(2 * GIB), GIB), 2, 1, id="out of the namespace"),
        pytest.param(
            process("5:cpu:/z\n4:memory:/a\n0::/\n", OTHER_V1_MOUNT + V1_MOUNT) | v1("/a", 4 * GIB, 2 * GIB, GIB),
            4,
            3,
            id="version 1",
        ),
        pytest.param(
            process("4:hugetlb,memory:/a/b\n", V1_MOUNT) | v1("/a/b", NO_LIMIT_V1, GIB) | v1("/a", 4 * GIB, 3 * GIB),
            4,
            1,
            id="version 1, the parent's limit",
        ),
        pytest.param(
            process("4:memory:/a\n", V1_MOUNT) | v1("/a", NO_LIMIT_V1, GIB, hierarchical=3 * GIB),
            3,
            2,
            id="version 1, a limit out of sight",
        ),
        pytest.param(
            process("4:memory:/a\n0::/u\n", V1_MOUNT + V2_MOUNT.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"))
            | v1("/a", 6 * GIB, GIB),
            6,
            5,
            id="both versions",
        ),
    ],
)
def test_limits(tmp_path, files, total, free) -> None:
    assert read_host_memory(tree(tmp_path, files)) == HostMemory(total * GIB, free * GIB)


def test_kernels_that_do_not_estimate_what_is_available(tmp_path) -> None:
    old = {"proc/meminfo": "MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 20 kB\nCached: 3 kB\n\nHugePages_Total: 0\n"}
    assert read_host_memory(tree(tmp_path, old)) == HostMemory(1000 * 1024, 123 * 1024)


def test_without_proc_the_physical_memory_is_told(tmp_path) -> None:
    memory = read_host_memory(tmp_path)
    assert memory.free == memory.total >= read_host_memory().total > 0


def test_a_system_that_tells_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.delattr("os.sysconf_names")
    assert read_host_memory(tmp_path) == HostMemory(0, 0)


def test_this_machine() -> None:
    memory = read_host_memory()
    assert 0 < memory.free <= memory.total
