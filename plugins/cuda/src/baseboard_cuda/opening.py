"""Makes the backend for a device that the probe has found: the one place that wires."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
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
from baseboard_cuda.engines import flashinfer, varlen
from baseboard_cuda.engines.choice import AUTO, Engine, Missing
from baseboard_cuda.engines.flashinfer import find_flashinfer
from baseboard_cuda.engines.varlen import find_varlen
from baseboard_cuda.memory import GpuMeter, HostMeter, SharedMeter
from baseboard_cuda.options import Options, read_options
from baseboard_cuda.probing.driver import load_library
from baseboard_cuda.registered import CudaRegistry, RegisteredMemory
from baseboard_cuda.swap.driver import DriverCopies
from baseboard_cuda.swap.lanes import Lanes, Stream
from baseboard_cuda.swap.swapper import HostSwapper, LaneSwapper
from baseboard_cuda.tiles import INTERPRETED, table_name

_BFLOAT16_FROM: Final = 80
#: So few that small tests split their keys.
_INTERPRETED_PROCESSORS: Final = 8


def open_device(device: DeviceInfo, options: Mapping[str, Any]) -> CudaBackend:
    """Raises ``BackendUnavailable``: for a wrong option, a compiler cache that cannot be written, a GPU that fails."""
    chosen = read_options(options, os.environ)
    if device.device_type == "cpu":
        return CudaBackend(open_interpreter(chosen), chosen)
    check_compiler_cache(Path(knobs.cache.dir))
    return CudaBackend(open_gpu(device.index, chosen), chosen)


def open_gpu(index: int, options: Options) -> Chip:
    """Make a context on GPU ``index``. Raises ``BackendUnavailable`` with torch's own reason."""
    device = torch.device("cuda", index)
    try:
        torch.cuda.set_device(device)
        touch(device)
        properties = torch.cuda.get_device_properties(device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: a torch without CUDA
        raise BackendUnavailable(f"{device} cannot be used: {error}") from error
    capability = properties.major * 10 + properties.minor
    tiles = options.tile_table(table_name(capability))
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
        engines=_wanted(
            options.attention,
            {flashinfer.NAME: lambda: find_flashinfer(device), varlen.NAME: lambda: find_varlen(capability)},
        ),
    )


def touch(device: torch.device) -> None:
    """Make a context: raises what torch raises where that is not possible."""
    torch.zeros(1, device=device)


def open_interpreter(options: Options) -> Chip:
    """Every kernel on the CPU. Without bfloat16, which the interpreter multiplies wrongly and says nothing."""
    if not knobs.runtime.interpret:
        raise BackendUnavailable("Triton's interpreter is off: set TRITON_INTERPRET=1 before Python starts")
    device = torch.device("cpu")
    memory = DeviceMemory(device)
    return Chip(
        device=device,
        dtypes=("float32", "float16"),
        tiles=options.tile_table(INTERPRETED),
        num_processors=_INTERPRETED_PROCESSORS,
        communicator="gloo",
        asynchronous=False,
        memory=memory,
        host_pools=memory,
        host_buffers=memory,
        upload=_copied,
        meter=HostMeter(),
        swapper=HostSwapper(),
        engines=_wanted(
            options.attention,
            {name: partial(Missing, name, "it runs on a GPU only") for name in (flashinfer.NAME, varlen.NAME)},
        ),
    )


def check_compiler_cache(folder: Path) -> None:
    """Raise ``BackendUnavailable`` when Triton could not keep what it compiles."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise BackendUnavailable(
            f"Triton keeps compiled kernels in {folder}, and {there} cannot be written: "
            f"set TRITON_CACHE_DIR to a folder that can"
        )


def _wanted(attention: str, finders: Mapping[str, Callable[[], Engine]]) -> tuple[Engine, ...]:
    """The engines that the option may choose. Raises ``BackendUnavailable`` when the one it names is missing.

    Others are not looked for: that may take seconds.
    """
    found = tuple(find() for name, find in finders.items() if attention in {AUTO, name})
    for engine in found:
        if isinstance(engine, Missing) and engine.name == attention:
            raise BackendUnavailable(f"attention={attention} is not possible: {engine.reason}")
    return found


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
