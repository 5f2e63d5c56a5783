"""GPUs that do not open, that are shared, and that are lost: by taking torch's and the driver's place."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from baseboard.contract import BackendFault, BackendUnavailable, DeviceInfo
from baseboard_cuda import attention, blocks, opening
from baseboard_cuda.backend import CudaBackend
from baseboard_cuda.memory import GpuMeter, SharedMeter
from baseboard_cuda.opening import open_device, open_gpu
from baseboard_cuda.options import Options
from baseboard_cuda.swap.swapper import LaneSwapper
from core.backends.world import Row, make_world
from plugins.cuda.fake_cuda import FakeGpuStreams

GIB = 1 << 30


class FakeLibrary:
    """Of the driver, what swaps need; one that is older than 12.8."""

    def __init__(self) -> None:
        self.cuMemcpyAsync = lambda *args: 0

    def cuGetProcAddress_v2(self, *args) -> int:
        return 500  # not found

    def cuGetErrorName(self, *args) -> int:
        return 1


@pytest.fixture
def gpu(monkeypatch):
    """Properties of a GPU that torch says it has; tests change them before it is opened."""
    properties = SimpleNamespace(major=9, minor=0, multi_processor_count=132, is_integrated=0)
    streams = FakeGpuStreams(0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: streams.new())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: streams.current())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(opening, "touch", lambda device: None)
    monkeypatch.setattr(opening, "load_library", FakeLibrary)
    return properties


def test_a_torch_without_cuda_gives_its_own_reason(monkeypatch) -> None:
    def refuse(device):
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch.cuda, "set_device", refuse)
    with pytest.raises(BackendUnavailable, match="cuda:3 cannot be used: Torch not compiled with CUDA"):
        open_gpu(3, Options())


def test_a_gpu_that_another_process_has_for_itself(gpu, monkeypatch) -> None:
    def refuse(device):
        raise torch.AcceleratorError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")

    monkeypatch.setattr(opening, "touch", refuse)
    with pytest.raises(BackendUnavailable, match=r"cuda:0 cannot be used: .*busy or unavailable"):
        open_gpu(0, Options())


@pytest.mark.parametrize(
    ("capability", "integrated", "dtypes", "table", "meter"),
    [
        ((9, 0), 0, ("bfloat16", "float16", "float32"), "sm_90", GpuMeter),
        ((7, 5), 0, ("float16", "float32"), "sm_75", GpuMeter),
        ((12, 1), 1, ("bfloat16", "float16", "float32"), "sm_120", SharedMeter),
    ],
)
def test_what_a_gpu_gets(gpu, capability, integrated, dtypes, table, meter) -> None:
    gpu.major, gpu.minor = capability
    gpu.is_integrated = integrated
    chip = open_gpu(1, Options())
    assert chip.device == torch.device("cuda", 1)
    assert (chip.dtypes, chip.tiles.name, chip.num_processors) == (dtypes, table, 132)
    assert type(chip.meter) is meter
    assert isinstance(chip.swapper, LaneSwapper)
    assert (chip.communicator, chip.asynchronous, chip.engines) == ("nccl", True, ())
    backend = CudaBackend(chip, Options())
    assert "async_swap" in backend.capabilities().features
    assert backend.capabilities().communicator == "nccl"
    backend.synchronize()
    backend.close()


def test_two_processes_on_one_gpu_are_seen_in_what_is_left(gpu, monkeypatch) -> None:
    """We hold 10 GiB of 80, somebody else 30: the core sizes its pool by what is free."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (40 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 9 * GIB)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 8 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10 * GIB)
    seen = CudaBackend(open_gpu(0, Options()), Options()).memory_snapshot()
    assert (seen.total, seen.free, seen.allocated, seen.reserved) == (80 * GIB, 40 * GIB, 9 * GIB, 10 * GIB)
    assert seen.peak == 9 * GIB  # never below what is allocated


def test_a_gpu_without_memory_of_its_own_has_the_hosts(gpu, monkeypatch) -> None:
    gpu.is_integrated = 1
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 * GIB, 1000 * GIB))
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    monkeypatch.setattr(
        "baseboard_cuda.memory.read_host_memory", lambda: SimpleNamespace(total=120 * GIB, free=90 * GIB)
    )
    seen = CudaBackend(open_gpu(0, Options()), Options()).memory_snapshot()
    assert (seen.total, seen.free) == (120 * GIB, 90 * GIB)


def test_a_compiler_cache_that_cannot_be_written_is_said_before_the_gpu_is_touched(gpu, monkeypatch, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(opening, "open_gpu", lambda *args: pytest.fail("the GPU was opened"))
    device = DeviceInfo("cuda", "cuda", 0, "NVIDIA H100", "sm_90", 1, True)
    with pytest.raises(BackendUnavailable, match="set TRITON_CACHE_DIR to a folder that can"):
        open_device(device, {})


LOST = "CUDA error: unspecified launch failure"


def _lost(*args, **kwargs):
    def launch(*args, **kwargs):
        raise torch.AcceleratorError(LOST)

    return launch


def test_a_gpu_that_is_lost_is_a_fault_in_every_hook_that_touches_it(backend, monkeypatch) -> None:
    """And closing what is left is quiet."""
    world = make_world([Row(1, 20), Row(7, 9)], "float16", num_decodes=1)
    cache = world.poisoned_cache(backend, 0.0)
    kernel = backend.attention_kernel(world.spec, world.kv)
    metadata = backend.build_attention_metadata(world.batch(), cache)
    monkeypatch.setattr(attention, "on_grid", _lost)
    monkeypatch.setattr(blocks, "on_grid", _lost)
    key, value, query = world._new(world.key), world._new(world.value), torch.cat(world.query)
    touching = {
        "storing keys and values": lambda: kernel.write(key, value, cache.layer(0), metadata),
        "attention": lambda: kernel.attend(query, cache.layer(0), metadata),
        "copying blocks": lambda: backend.copy_blocks(cache, np.array([[1, 2]])),
        "wiping blocks": lambda: backend.zero_blocks(cache, np.array([1])),
    }
    for what, call in touching.items():
        with pytest.raises(BackendFault, match=f"the GPU failed during {what}: {LOST}"):
            call()


def test_waiting_for_a_lost_gpu_is_a_fault(gpu, monkeypatch) -> None:
    backend = CudaBackend(open_gpu(0, Options()), Options())

    def fail(device):
        raise torch.AcceleratorError(LOST)

    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    monkeypatch.setattr(torch.cuda, "mem_get_info", fail)
    with pytest.raises(BackendFault, match="waiting for it"):
        backend.synchronize()
    with pytest.raises(BackendFault, match="reading its memory"):
        backend.memory_snapshot()
    backend.close()
    backend.close()
