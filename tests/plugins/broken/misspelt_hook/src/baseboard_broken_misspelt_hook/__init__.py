"""A plugin with a slip of the pen: ``probe_device`` in place of ``probe_devices``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baseboard.contract import BackendUnavailable, DeviceInfo, hookimpl


@hookimpl
def contract_version() -> str:
    return "1.0"


@hookimpl
def probe_device() -> list[DeviceInfo]:
    return []


@hookimpl
def open_backend(device: DeviceInfo, options: Mapping[str, Any]) -> object:
    raise BackendUnavailable("nothing is ever probed, so nothing can be opened")
