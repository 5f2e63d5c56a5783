"""Light imports, dtypes, pools."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from baseboard.kit.dtypes import dtype_name, torch_dtype
from baseboard.kit.host_memory import read_host_memory
from baseboard.kit.pool import DeviceMemory, PinnedMemory, allocate_planes, out_of_memory_translated
from baseboard.kit.process_memory import ProcessMemory

LIGHT = ("host_memory", "process_memory", "pairs", "transfer", "batch_checks")
CPU = torch.device("cpu")


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_load_no_torch(module) -> None:
    code = f"import sys; import baseboard.kit.{module}; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)]
)
def test_dtypes_there_and_back(name, dtype) -> None:
    assert torch_dtype(name) is dtype
    assert dtype_name(dtype) == name


def test_other_dtypes() -> None:
    with pytest.raises(ValueError, match="'float64' is not known: the contract has float32"):
        torch_dtype("float64")
    with pytest.raises(ValueError, match=r"torch.int8 is not a dtype of the contract"):
        dtype_name(torch.int8)


def test_planes_are_zero_and_of_the_sizes_asked_for() -> None:
    planes = allocate_planes(DeviceMemory(CPU), 3, (5, 16))
    assert [tuple(plane.shape) for plane in planes] == [(3, 5), (3, 16)]
    assert all(plane.dtype == torch.uint8 and not plane.any() for plane in planes)


@pytest.mark.parametrize("memory", [DeviceMemory(CPU), PinnedMemory(), DeviceMemory(torch.device("cuda", 0))], ids=str)
def test_what_cannot_be_addressed(memory) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        allocate_planes(memory, 2**40, (2**30, 2**30))
    with pytest.raises(torch.OutOfMemoryError):
        memory.zeros((2**60, 2**10), torch.float32)


def test_memory_that_the_driver_does_not_pin(monkeypatch) -> None:
    """Some devices' allocators give a tensor at address 0 then, and writing to it would end the process."""
    monkeypatch.setattr(torch, "empty", lambda *_, **__: SimpleNamespace(data_ptr=lambda: 0))
    with pytest.raises(torch.OutOfMemoryError, match=r"refused to pin 32 bytes of host memory: lower .* \(ulimit -l\)"):
        PinnedMemory().zeros((4,), torch.int64)


def test_planes_that_fit_only_one_by_one() -> None:
    size = read_host_memory().total * 3 // 5
    with pytest.raises(torch.OutOfMemoryError, match="do not fit: this process may use"):
        allocate_planes(DeviceMemory(CPU), 1, (size, size))


def test_torchs_own_words_for_exhausted_host_memory() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="DefaultCPUAllocator"), out_of_memory_translated():
        torch.empty(2**50, dtype=torch.uint8)


def test_numpys_own_error_for_exhausted_host_memory() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="Unable to allocate"), out_of_memory_translated():
        np.zeros(2**50, np.uint8)


def test_host_memory_is_taken_only_when_it_is_written() -> None:
    meter = ProcessMemory()
    size = 1 << 28
    before = meter.read().current
    pool = DeviceMemory(CPU).zeros((size // 4,), torch.float32)
    assert meter.read().current - before < size / 8
    pool.fill_(1)
    assert meter.read().current - before > size * 7 / 8


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="something else") as caught, out_of_memory_translated():
        raise RuntimeError("something else")
    assert not isinstance(caught.value, torch.OutOfMemoryError)
    original = torch.OutOfMemoryError("device")
    with pytest.raises(torch.OutOfMemoryError) as caught, out_of_memory_translated():
        raise original
    assert caught.value is original
