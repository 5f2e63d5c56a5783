"""A plugin of the future: another major version, and an argument that this core does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baseboard.contract import BackendUnavailable, DeviceInfo, hookimpl


@hookimpl
def contract_version() -> str:
    return "2.0"


@hookimpl
def probe_devices(timeout: float) -> list[DeviceInfo]:
    return []


@hookimpl
def open_backend(device: DeviceInfo, options: Mapping[str, Any]) -> object:
    raise BackendUnavailable("its probe finds no device")
