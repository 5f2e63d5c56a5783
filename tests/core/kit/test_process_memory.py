from __future__ import annotations

from pathlib import Path

import pytest

from baseboard.kit.process_memory import ProcessMemory, ResidentSize


class FakeProcess:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc/self").mkdir(parents=True)

    def set(self, resident: int, peak: int) -> None:
        (self.root / "proc/self/status").write_text(f"Name:\tx\nVmHWM:\t{peak} kB\nVmRSS:\t{resident} kB\n")

    def allow_reset(self) -> Path:
        path = self.root / "proc/self/clear_refs"
        path.write_text("")
        return path


@pytest.fixture
def process(tmp_path) -> FakeProcess:
    return FakeProcess(tmp_path)


def size(current: int, peak: int) -> ResidentSize:
    return ResidentSize(current * 1024, peak * 1024)


def test_the_kernels_peak(process) -> None:
    meter = ProcessMemory(process.root)
    process.set(resident=10, peak=30)
    assert meter.read() == size(10, 30)


def test_a_reset_that_the_kernel_follows(process) -> None:
    written = process.allow_reset()
    meter = ProcessMemory(process.root)
    process.set(resident=10, peak=10)  # what the kernel makes of it
    meter.reset_peak()
    assert written.read_text() == "5"
    assert meter.read() == size(10, 10)
    process.set(resident=12, peak=25)
    assert meter.read() == size(12, 25)
    process.set(resident=11, peak=25)
    assert meter.read() == size(11, 25)


def test_without_leave_to_reset_the_meters_own_sight_counts(process) -> None:
    meter = ProcessMemory(process.root)
    process.set(resident=10, peak=30)
    meter.reset_peak()
    assert not (process.root / "proc/self/clear_refs").exists()
    assert meter.read() == size(10, 10)
    process.set(resident=20, peak=30)
    assert meter.read() == size(20, 20)
    process.set(resident=15, peak=30)
    assert meter.read() == size(15, 20)
    process.set(resident=15, peak=40)  # above all before: reached since the reset, though nobody looked
    assert meter.read() == size(15, 40)


def test_a_peak_below_the_resident_size(process) -> None:
    """The kernel counts in batches, so its two numbers may disagree for a moment."""
    process.set(resident=12, peak=11)
    assert ProcessMemory(process.root).read() == size(12, 12)


def test_a_system_that_tells_nothing(tmp_path) -> None:
    meter = ProcessMemory(tmp_path)
    meter.reset_peak()
    assert meter.read() == ResidentSize(0, 0)


def test_this_process() -> None:
    meter = ProcessMemory()
    meter.reset_peak()
    block = bytearray(b"x") * (1 << 25)
    held = meter.read()
    del block
    assert held.current > 1 << 25
    assert meter.read().peak >= held.current
