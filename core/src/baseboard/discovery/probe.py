"""Asking loaded plugins for their devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final, cast

from baseboard.contract import ContractError, DeviceInfo
from baseboard.discovery.installation import PluginSource
from baseboard.discovery.isolation import Failure, attempt
from baseboard.discovery.plugins import PluginRecord


class BackendState(Enum):
    """How far a backend came; each state includes those before it."""

    FOUND = "found"  #: an entry point names it
    LOADED = "loaded"  #: imported, and it keeps the contract
    AVAILABLE = "available"  #: at least one device can be opened


#: Annotations bind nobody at run time, and what sorts or prints devices must not fail on a plugin's mistake.
_FIELD_TYPES: Final[tuple[tuple[str, type], ...]] = (
    ("backend", str),
    ("device_type", str),
    ("index", int),
    ("name", str),
    ("arch", str),
    ("total_memory", int),
    ("available", bool),
    ("priority", int),
    ("details", Mapping),
)


@dataclass(frozen=True, slots=True)
class BackendReport:
    """A plugin and its devices. ``reason`` says why it is not available; None where it is."""

    plugin: PluginRecord
    devices: tuple[DeviceInfo, ...]
    reason: str | None

    @property
    def name(self) -> str:
        return self.plugin.name

    @property
    def state(self) -> BackendState:
        if self.reason is None:
            return BackendState.AVAILABLE
        return BackendState.FOUND if self.plugin.hooks is None else BackendState.LOADED

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "found": True,
            "loaded": self.plugin.hooks is not None,
            "available": self.state is BackendState.AVAILABLE,
            "reason": self.reason,
            "contract_version": self.plugin.contract_version,
            "sources": [source_as_dict(source) for source in self.plugin.sources],
            "devices": [device_as_dict(device) for device in self.devices],
        }


def source_as_dict(source: PluginSource) -> dict[str, str]:
    return {"distribution": source.distribution, "version": source.version, "entry_point": source.value}


def device_as_dict(device: DeviceInfo) -> dict[str, Any]:
    plain = {f.name: getattr(device, f.name) for f in fields(DeviceInfo) if f.name != "details"}
    return plain | {"details": {str(key): str(value) for key, value in device.details.items()}}


def probe(plugin: PluginRecord) -> BackendReport:
    """Ask ``plugin`` for its devices. Never raises: a probe that does, or answers nonsense, is a reason."""
    hooks = plugin.hooks
    if hooks is None:
        return BackendReport(plugin, (), plugin.reason)
    devices = attempt(lambda: _checked_devices(plugin.name, hooks.probe_devices()))
    if isinstance(devices, Failure):
        return BackendReport(plugin, (), f"probe_devices failed: {devices.reason}")
    return BackendReport(plugin, devices, _why_unavailable(devices))


def _why_unavailable(devices: tuple[DeviceInfo, ...]) -> str | None:
    if any(device.available for device in devices):
        return None
    reasons = [" ".join(str(device.reason).split()) for device in devices]
    if len(set(reasons)) == 1:
        return reasons[0]
    named = (f"{d.device_type}:{d.index}: {reason}" for d, reason in zip(devices, reasons, strict=True))
    return "; ".join(named) or "its probe found no device"


def _checked_devices(name: str, answer: object) -> tuple[DeviceInfo, ...]:
    """``answer`` as a tuple of sound devices. Raises ``ContractError`` naming what is wrong with it."""
    if not isinstance(answer, list | tuple):
        raise ContractError(f"it gave {answer!r}, not a list of DeviceInfo")
    for device in cast("Sequence[object]", answer):
        problem = _device_problem(name, device)
        if problem is not None:
            raise ContractError(problem)
    return tuple(cast("Sequence[DeviceInfo]", answer))


def _device_problem(name: str, device: object) -> str | None:
    if not isinstance(device, DeviceInfo):
        return f"it gave {device!r} in place of a DeviceInfo"
    for field, kind in _FIELD_TYPES:
        value = getattr(device, field)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            return f"DeviceInfo.{field} is {value!r}, not {kind.__name__}"
    if device.backend != name:
        return f"DeviceInfo.backend is {device.backend!r}, but the entry point has the name {name!r}"
    if not device.available and not (isinstance(device.reason, str) and device.reason):
        return f"device {device.device_type}:{device.index} is not available, and its reason is {device.reason!r}"
    return None
