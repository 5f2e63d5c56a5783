"""The torch device that the reference backend runs on, and its memory meter."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final, Protocol

import torch

from baseboard.contract import BackendUnavailable, MemorySnapshot
from baseboard.kit.host_memory import read_host_memory
from baseboard.kit.process_memory import ProcessMemory


def open_device(name: object) -> torch.device:
    """The torch device called ``name``, tried out. Raises ``BackendUnavailable`` with torch's own reason."""
    # What torch raises for a device that is unknown, not compiled in, or not there; it has no common type for these.
    failures = (RuntimeError, AssertionError, NotImplementedError, TypeError, ImportError)
    try:
        # Made from a tensor: "cuda" then is "cuda:0", as tensors on it say, and the context is there.
        device = torch.zeros(1, device=torch.device(name)).device  # pyright: ignore[reportArgumentType]
    except failures as error:
        raise BackendUnavailable(f"the reference backend cannot use device={name!r}: {error}") from error
    if device.type == "meta":
        raise BackendUnavailable("the reference backend cannot use device='meta': its tensors hold no data")
    return device


def can_pin(device: torch.device) -> bool:
    """Whether host memory can be pinned for transfers to ``device``."""
    if device.type == "cpu":
        return False
    try:
        return torch.zeros(1, pin_memory=True).is_pinned()
    except RuntimeError:
        return False


def communicator(device: torch.device) -> str:
    """Name of the torch.distributed backend for ``device``."""
    if device.type == "cpu" or not torch.distributed.is_available():
        return "gloo"
    return torch.distributed.get_default_backend_for_device(device)


class MemoryMeter(Protocol):
    """Memory of one device."""

    def snapshot(self) -> MemorySnapshot: ...
    def reset_peak(self) -> None: ...
    def empty_cache(self) -> None: ...


def memory_meter(device: torch.device) -> MemoryMeter:
    """The meter for ``device``; devices that share the host's memory and keep no account of it get the host's."""
    if device.type != "cpu":
        module = torch.get_device_module(device)
        if hasattr(module, "mem_get_info"):
            return AcceleratorMeter(module, device)
    return HostMeter()


class HostMeter:
    """Memory of this machine or container, and of this process in it."""

    def __init__(self) -> None:
        self._process: Final = ProcessMemory()

    def snapshot(self) -> MemorySnapshot:
        host = read_host_memory()
        size = self._process.read()
        return MemorySnapshot(host.total, host.free, size.current, size.peak, reserved=size.current)

    def reset_peak(self) -> None:
        self._process.reset_peak()

    def empty_cache(self) -> None:
        """Nothing to do: torch's host allocator keeps nothing back."""


class AcceleratorMeter:
    """Memory of a device whose torch module counts it: ``torch.cuda``, ``torch.xpu``, ``torch.npu``."""

    def __init__(self, module: ModuleType | Any, device: torch.device) -> None:
        self._module: Final = module
        self._device: Final = device

    def snapshot(self) -> MemorySnapshot:
        free, total = self._module.mem_get_info(self._device)
        allocated = self._module.memory_allocated(self._device)
        peak = self._module.max_memory_allocated(self._device)
        return MemorySnapshot(total, free, allocated, peak, reserved=self._module.memory_reserved(self._device))

    def reset_peak(self) -> None:
        self._module.reset_peak_memory_stats(self._device)

    def empty_cache(self) -> None:
        self._module.empty_cache()
