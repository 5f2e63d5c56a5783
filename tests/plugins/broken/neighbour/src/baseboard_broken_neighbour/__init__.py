"""Not broken: a plugin that the broken ones must not harm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baseboard.contract import BackendUnavailable, DeviceInfo, hookimpl


@hookimpl
def contract_version() -> str:
    return "1.0"


@hookimpl
def probe_devices() -> list[DeviceInfo]:
    return [DeviceInfo("neighbour", "cpu", 0, "Neighbour 1", "n1", 1024, available=True, priority=-1)]


@hookimpl
def open_backend(device: DeviceInfo, options: Mapping[str, Any]) -> object:
    raise BackendUnavailable("the neighbour answers probes and opens nothing")
