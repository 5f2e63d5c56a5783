"""Which backend and device: by name, which fails rather than falls back, or by priority."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from baseboard.contract import BackendUnavailable, DeviceInfo
from baseboard.discovery.probe import BackendReport, BackendState

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Choice:
    """The backend and device to open."""

    backend: BackendReport
    device: DeviceInfo
    why: str  #: one sentence
    options: Mapping[str, str] = field(default_factory=dict[str, str])  #: what the choice itself asks of the plugin


def choose(reports: Sequence[BackendReport], wanted: str = AUTO) -> Choice:
    """Resolve what the user wrote.

    ===============  ==================================================================================
    ``auto``         the available device of the highest priority; equal ones by backend name, then index
    ``cuda``         that backend's available device of the highest priority
    ``cuda:1``       its device with index 1
    ``cuda:cuda:0``  as ``cuda``, and the plugin is given ``options["device"] = "cuda:0"``
    ===============  ==================================================================================

    Raises ``BackendUnavailable`` with the reason and with what is available instead.
    """
    name, colon, suffix = wanted.partition(":")
    if colon and (name == AUTO or not suffix):
        raise BackendUnavailable(f"backend={wanted!r} is not understood: write auto, NAME, NAME:INDEX or NAME:DEVICE")
    if name == AUTO:
        return _automatic(reports)
    backend = _named(reports, name)
    if re.fullmatch(r"-?\d+", suffix):
        return Choice(backend, _indexed(backend, int(suffix)), f"{wanted} was asked for")
    options = {"device": suffix} if suffix else {}
    return Choice(backend, _best(_available_devices(backend)), f"{wanted} was asked for", options)


def _automatic(reports: Sequence[BackendReport]) -> Choice:
    available = [report for report in reports if report.state is BackendState.AVAILABLE]
    if not available:
        reasons = "; ".join(f"{report.name}: {report.reason}" for report in reports)
        raise BackendUnavailable(f"no backend is available: {reasons or 'none is installed'}")
    device = _best(device for report in available for device in _available_devices(report))
    chosen = next(report for report in available if report.name == device.backend)
    rivals = [r.name for r in available if r is not chosen and _top_priority(r) == device.priority]
    if len(available) == 1:
        why = f"{chosen.name} is the only backend available"
    elif rivals:
        why = f"{chosen.name} is the first by name of those with the highest priority, {device.priority}"
    else:
        why = f"{chosen.name} has the highest priority, {device.priority}, of {len(available)} available backends"
    return Choice(chosen, device, why)


def _named(reports: Sequence[BackendReport], name: str) -> BackendReport:
    report = next((report for report in reports if report.name == name), None)
    if report is None:
        names = [report.name for report in reports]
        near = difflib.get_close_matches(name, names)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise BackendUnavailable(
            f"backend {name!r} is not installed; {hint}installed are: {', '.join(names) or 'none'}"
        )
    if report.state is not BackendState.AVAILABLE:
        others = [other.name for other in reports if other.state is BackendState.AVAILABLE]
        raise BackendUnavailable(
            f"backend {name!r} cannot be used: {report.reason}; available are: {', '.join(others) or 'none'}"
        )
    return report


def _indexed(backend: BackendReport, index: int) -> DeviceInfo:
    devices = [device for device in backend.devices if device.index == index]
    if not devices:
        known = ", ".join(f"{device.index} ({device.name})" for device in backend.devices)
        raise BackendUnavailable(f"backend {backend.name!r} has no device {index}; it has: {known}")
    device = _best(devices)
    if not device.available:
        usable = ", ".join(f"{d.index} ({d.name})" for d in _available_devices(backend))
        raise BackendUnavailable(
            f"device {index} of backend {backend.name!r} cannot be used: {device.reason}; available are: {usable}"
        )
    return device


def _available_devices(report: BackendReport) -> list[DeviceInfo]:
    return [device for device in report.devices if device.available]


def _top_priority(report: BackendReport) -> int:
    return _best(_available_devices(report)).priority


def _best(devices: Iterable[DeviceInfo]) -> DeviceInfo:
    return min(devices, key=lambda device: (not device.available, -device.priority, device.backend, device.index))
