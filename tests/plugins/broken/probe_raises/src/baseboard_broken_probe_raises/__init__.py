"""A plugin whose probe raises, though the contract forbids it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baseboard.contract import BackendUnavailable, DeviceInfo, hookimpl


@hookimpl
def contract_version() -> str:
    return "1.0"


@hookimpl
def probe_devices() -> list[DeviceInfo]:
    raise RuntimeError("driver 470 answered with error 803")


@hookimpl
def open_backend(device: DeviceInfo, options: Mapping[str, Any]) -> object:
    raise BackendUnavailable("its probe finds no device")
