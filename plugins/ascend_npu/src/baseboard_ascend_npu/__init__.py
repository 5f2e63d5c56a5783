"""Baseboard's backend for Ascend NPUs. This module is what the entry point names: it loads neither torch nor CANN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baseboard.contract import BackendUnavailable, DeviceInfo, hookimpl
from baseboard_ascend_npu.probe import find_npus


@hookimpl
def contract_version() -> str:
    return "1.0"


@hookimpl
def probe_devices() -> list[DeviceInfo]:
    return find_npus()


@hookimpl
def open_backend(device: DeviceInfo, options: Mapping[str, Any]) -> object:
    """Open one NPU. Options: ``device``, as ``"npu:1"``; ``gqa_64``, ``"yes"`` once ``npu-check`` said so."""
    if not device.available:
        raise BackendUnavailable(f"the ascend_npu backend cannot be opened: {device.reason}")
    from baseboard_ascend_npu.opening import open_npu

    return open_npu(device, options)
