"""Mutants as plugins that discovery finds: a folder with a module and an entry point for each. Loads no torch."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from baseboard.contract import API_VERSION, DeviceInfo, hookimpl
from baseboard_conformance.mutants.catalog import Mutant, Variant

_DISTRIBUTION: Final = "baseboard-mutants"

#: Text of a plugin's module, by the way in which it is good or bad.
_SHIMS: Final[Mapping[str, str]] = {
    "plain": "",
    "heavy": "import torch\n",
    "private": "import baseboard.scheduler.config\n",
    "fragile": "",
}
_MODULE: Final = '''"""Made by the conformance suite's self-check."""

{extra}from baseboard_conformance.mutants.plugins import {kind}

plugin = {kind}({name!r}, {place!r})
'''


class MutantPlugin:
    """Discovery hooks of one mutant."""

    def __init__(self, name: str, place: str) -> None:
        self._name: Final = name
        self._place: Final = place

    @hookimpl
    def contract_version(self) -> str:
        return API_VERSION

    @hookimpl
    def probe_devices(self) -> list[DeviceInfo]:
        arch = platform.machine()
        return [DeviceInfo(self._name, "cpu", 0, f"CPU ({self._name})", arch, 0, available=True, priority=-1)]

    @hookimpl
    def open_backend(self, device: DeviceInfo, options: Mapping[str, Any]) -> object:
        del device
        module, _, name = self._place.partition(":")
        return getattr(import_module(f"baseboard_conformance.mutants.{module}"), name)(options)


class FragilePlugin(MutantPlugin):
    """Its probe loads torch, and does not expect that to fail."""

    @hookimpl
    def probe_devices(self) -> list[DeviceInfo]:
        import_module("torch")
        return super().probe_devices()


def write_plugins(folder: Path, members: Iterable[Mutant | Variant]) -> None:
    """Make ``folder`` an import path on which discovery finds ``members`` as backends."""
    points: list[str] = []
    for member in members:
        shim = member.shim if isinstance(member, Mutant) else "plain"
        kind = FragilePlugin if shim == "fragile" else MutantPlugin
        module = f"baseboard_mutant_{member.name}"
        text = _MODULE.format(extra=_SHIMS[shim], kind=kind.__name__, name=member.backend, place=member.place)
        (folder / f"{module}.py").write_text(text, encoding="utf-8")
        points.append(f"{member.backend} = {module}:plugin")
    info = folder / f"{_DISTRIBUTION.replace('-', '_')}-0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_DISTRIBUTION}\nVersion: 0\n", encoding="utf-8")
    entries = "\n".join(["[baseboard.backends]", *points, ""])
    (info / "entry_points.txt").write_text(entries, encoding="utf-8")
