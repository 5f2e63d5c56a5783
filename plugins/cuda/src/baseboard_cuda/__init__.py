"""The CUDA backend: what its entry point names. Importing this loads neither torch nor triton nor the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baseboard.contract import BackendUnavailable, DeviceInfo, hookimpl
from baseboard_cuda.probing import find_devices


@hookimpl
def contract_version() -> str:
    return "1.0"


@hookimpl
def probe_devices() -> list[DeviceInfo]:
    """Each GPU the driver shows, or one line that says why there is none; under the interpreter, that one, too."""
    return find_devices()


@hookimpl
def open_backend(device: DeviceInfo, options: Mapping[str, Any]) -> object:
    """Open a GPU, or the interpreter. ``options`` are those of :class:`baseboard_cuda.options.Options`."""
    if not device.available:
        raise BackendUnavailable(f"the CUDA backend cannot be opened: {device.reason}")
    from baseboard_cuda.opening import open_device

    return open_device(device, options)
