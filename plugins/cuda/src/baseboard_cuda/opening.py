"""Makes the backend for a device that the probe has found: the one place that wires."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from triton import knobs

from baseboard.contract import BackendUnavailable, DeviceInfo
from baseboard.kit.pool import DeviceMemory, PinnedMemory
from baseboard_cuda.backend import CudaBackend
from baseboard_cuda.chip import Chip
from baseboard_cuda.memory import GpuMeter, HostMeter, SharedMeter
from baseboard_cuda.probing.driver import load_library
from baseboard_cuda.registered import CudaRegistry, RegisteredMemory
from baseboard_cuda.swap.driver import DriverCopies
from baseboard_cuda.swap.lanes import Lanes, Stream
from baseboard_cuda.swap.swapper import HostSwapper, LaneSwapper
from baseboard_cuda.tiles import INTERPRETED, load_tiles, table_name

_FP8_SCALES: Final = ("token_head", "tensor")
_BFLOAT16_FROM: Final = 80
#: So few that small tests split their keys.
_INTERPRETED_PROCESSORS: Final = 8


def open_device(device: DeviceInfo, options: Mapping[str, Any]) -> CudaBackend:
    """Raises ``BackendUnavailable``: for a wrong option, a compiler cache that cannot be written, a GPU that fails."""
    unknown = sorted(set(options) - {"fp8_scale"})
    if unknown:
        raise BackendUnavailable(f"the CUDA backend has no option {', '.join(unknown)}: its only one is fp8_scale")
    fp8_scale = options.get("fp8_scale", _FP8_SCALES[0])
    if fp8_scale not in _FP8_SCALES:
        raise BackendUnavailable(f"fp8_scale={fp8_scale!r} is not known: it is one of {', '.join(_FP8_SCALES)}")
    if device.device_type == "cpu":
        return CudaBackend(open_interpreter(), fp8_scale)
    check_compiler_cache(Path(knobs.cache.dir))
    return CudaBackend(open_gpu(device.index), fp8_scale)


def open_gpu(index: int) -> Chip:
    """Make a context on GPU ``index``. Raises ``BackendUnavailable`` with torch's own reason."""
    device = torch.device("cuda", index)
    try:
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
        properties = torch.cuda.get_device_properties(device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: a torch without CUDA
        raise BackendUnavailable(f"{device} cannot be used: {error}") from error
    capability = properties.major * 10 + properties.minor
    tiles = load_tiles(table_name(capability))
    lanes = Lanes(DriverCopies(load_library()), _TorchStreams(device))
    return Chip(
        device=device,
        dtypes=("bfloat16", "float16", "float32") if capability >= _BFLOAT16_FROM else ("float16", "float32"),
        tiles=tiles,
        num_processors=properties.multi_processor_count,
        communicator="nccl",
        asynchronous=True,
        memory=DeviceMemory(device),
        host_pools=RegisteredMemory(CudaRegistry()),
        host_buffers=PinnedMemory(),
        upload=_PinnedUpload(device),
        meter=SharedMeter(device) if properties.is_integrated else GpuMeter(device),
        swapper=LaneSwapper(lanes),
    )


def open_interpreter() -> Chip:
    """Every kernel on the CPU. Without bfloat16, which the interpreter multiplies wrongly and says nothing."""
    if not knobs.runtime.interpret:
        raise BackendUnavailable("Triton's interpreter is off: set TRITON_INTERPRET=1 before Python starts")
    device = torch.device("cpu")
    memory = DeviceMemory(device)
    return Chip(
        device=device,
        dtypes=("float32", "float16"),
        tiles=load_tiles(INTERPRETED),
        num_processors=_INTERPRETED_PROCESSORS,
        communicator="gloo",
        asynchronous=False,
        memory=memory,
        host_pools=memory,
        host_buffers=memory,
        upload=_copied,
        meter=HostMeter(),
        swapper=HostSwapper(),
    )


def check_compiler_cache(folder: Path) -> None:
    """Raise ``BackendUnavailable`` when Triton could not keep what it compiles."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise BackendUnavailable(
            f"Triton keeps compiled kernels in {folder}, and {there} cannot be written: "
            f"set TRITON_CACHE_DIR to a folder that can"
        )


class _TorchStreams:
    """Implements :class:`baseboard_cuda.swap.lanes.Streams`."""

    def __init__(self, device: torch.device) -> None:
        self._device: Final = device

    def new(self) -> Stream:
        return torch.cuda.Stream(self._device)

    def current(self) -> Stream:
        return torch.cuda.current_stream(self._device)


class _PinnedUpload:
    """By way of torch's pinned allocator, which keeps a buffer until the copy from it is done."""

    def __init__(self, device: torch.device) -> None:
        self._device: Final = device

    def __call__(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).pin_memory().to(self._device, non_blocking=True)


def _copied(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.array(array))
