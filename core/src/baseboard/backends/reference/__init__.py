"""The reference backend: plain torch on any device, always there.

This module is what its entry point names. It loads no torch until a backend is opened.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from baseboard.contract import API_VERSION, BackendUnavailable, DeviceInfo, hookimpl
from baseboard.kit.host_memory import read_host_memory
from baseboard.kit.procfs import read_lines

_NO_TORCH = "torch is not installed: pip install 'baseboard[torch]'"


@hookimpl
def contract_version() -> str:
    return API_VERSION


@hookimpl
def probe_devices() -> list[DeviceInfo]:
    missing = find_spec("torch") is None
    return [
        DeviceInfo(
            backend="reference",
            device_type="cpu",
            index=0,
            name=_cpu_name(),
            arch=platform.machine(),
            total_memory=read_host_memory().total,
            available=not missing,
            reason=_NO_TORCH if missing else None,
            priority=0,  # a backend made for the chip is always to be preferred
            details={"options": "device: any torch device, such as cuda:0"},
        )
    ]


@hookimpl
def open_backend(device: DeviceInfo, options: Mapping[str, Any]) -> object:
    """Open the CPU, or the torch device that ``options["device"]`` names: ``"cuda:0"``, ``"mps"``, ``"cpu"``."""
    if find_spec("torch") is None:
        raise BackendUnavailable(f"the reference backend cannot be opened: {_NO_TORCH}")
    unknown = sorted(set(options) - {"device"})
    if unknown:
        raise BackendUnavailable(f"the reference backend has no option {', '.join(unknown)}: its only one is device")

    from baseboard.backends.reference.backend import ReferenceBackend
    from baseboard.backends.reference.device import open_device

    return ReferenceBackend(open_device(options.get("device", device.device_type)))


def _cpu_name() -> str:
    names = (
        line.partition(":")[2].strip() for line in read_lines(Path("/proc/cpuinfo")) if line.startswith("model name")
    )
    return next(names, platform.machine())
