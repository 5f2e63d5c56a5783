"""What the entry point names: every start of Baseboard imports it, so it loads neither torch nor a driver."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from baseboard.contract import BackendUnavailable, DeviceInfo, hookimpl
from baseboard.kit.host_memory import read_host_memory


@hookimpl
def contract_version() -> str:
    return "1.0"


@hookimpl
def probe_devices() -> list[DeviceInfo]:
    found = find_spec("torch") is not None
    return [
        DeviceInfo(
            backend="NAME",
            device_type="cpu",
            index=0,
            name=f"CPU {platform.machine()}",
            arch=platform.machine(),
            total_memory=read_host_memory().total,
            available=found,
            reason=None if found else "torch is not installed",
        )
    ]


@hookimpl
def open_backend(device: DeviceInfo, options: Mapping[str, Any]) -> object:
    if options:
        raise BackendUnavailable(f"the NAME backend has no option {', '.join(sorted(options))}")
    if not device.available:
        raise BackendUnavailable(f"the NAME backend cannot be opened: {device.reason}")
    from PACKAGE.backend import Backend

    return Backend()
