"""Looking at a plugin in a process of its own: what its import loads, what its probe does, what it does to the core.

Run as ``python -m baseboard_conformance.inspecting NAME BACKEND RESULT``: the answer is written to the file RESULT as
JSON, because a plugin may print.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import pkgutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from baseboard.contract import DeviceInfo
from baseboard.discovery import PluginSource, open_backend, read_installation
from baseboard_conformance.outside import as_list

#: Libraries that take long to load or touch a device.
HEAVY: Final = (
    "torch",
    "torch_npu",
    "torch_xla",
    "transformers",
    "tensorflow",
    "jax",
    "triton",
    "cupy",
    "acl",
    "pycuda",
)


def source_of(backend: str) -> PluginSource:
    name = backend.partition(":")[0]
    return next(source for source in read_installation().backends if source.name == name)


def light_import(backend: str) -> dict[str, Any]:
    """Seconds that the import of the entry point takes, and the heavy libraries that it loads."""
    source = source_of(backend)
    before = set(sys.modules)
    began = time.perf_counter()
    source.load()
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "heavy": sorted(set(_tops(set(sys.modules) - before)) & set(HEAVY))}


def plain_probe(backend: str) -> dict[str, Any]:
    return _probe(backend)


def crippled_probe(backend: str) -> dict[str, Any]:
    """The probe where every heavy library is installed and broken: its import fails."""
    broken = _Broken()
    sys.meta_path.insert(0, broken)
    return {**_probe(backend), "tried": sorted(set(broken.tried))}


def core_changes(backend: str) -> dict[str, Any]:
    """Attributes of the core's modules and classes that are others after the backend was opened."""
    _load_core()
    before = _snapshot()
    with open_backend(backend) as opened:
        opened.hook.capabilities()
    after = _snapshot()
    changed = [name for name, value in before.items() if after.get(name) is not value]
    return {"changed": sorted(changed)[:20]}


def _load_core() -> None:
    """The engine, and every module that a plugin knows."""
    importlib.import_module("baseboard.llm")
    for name in ("baseboard.contract", "baseboard.kit", "baseboard.discovery"):
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__, f"{name}."):
            importlib.import_module(module.name)


def _probe(backend: str) -> dict[str, Any]:
    plugin: Any = source_of(backend).load()
    before = set(sys.modules)
    try:
        devices: Any = plugin.probe_devices()
    except BaseException as error:
        return {"raised": f"{type(error).__name__}: {error}"}
    loaded = sorted(set(_tops(set(sys.modules) - before)) & set(HEAVY))
    return {"problems": _problems(backend.partition(":")[0], devices), "loaded": loaded, "count": len(devices)}


def _problems(name: str, answer: object) -> list[str]:
    devices = as_list(answer)
    if devices is None:
        return [f"it gave a {type(answer).__name__}, right is a list"]
    found: list[str] = []
    for device in devices:
        if not isinstance(device, DeviceInfo):
            found.append(f"it gave {device!r}, right is DeviceInfo")
        elif device.backend != name:
            found.append(f"DeviceInfo.backend is {device.backend!r}, right is {name!r}")
        elif not device.available and not device.reason:
            found.append("a device is not available and gives no reason")
    return found


def _tops(names: set[str]) -> list[str]:
    return [name.partition(".")[0] for name in names]


def _snapshot() -> dict[str, object]:
    """Every attribute of every module of the core, and of every class in them."""
    found: dict[str, object] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "baseboard" or name.startswith("baseboard.backends"):
            continue
        for key, value in vars(module).items():
            if key.startswith("__"):
                continue
            found[f"{name}.{key}"] = value
            if isinstance(value, type) and value.__module__ == name:
                own = {f"{name}.{key}.{k}": v for k, v in vars(value).items() if not k.startswith(("__", "_abc"))}
                found.update(own)
    return {name: value for name, value in found.items() if not isinstance(value, ModuleType)}


class _Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every heavy library, and fails to load it."""

    def __init__(self) -> None:
        self.tried: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] not in HEAVY:
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        self.tried.append(spec.name)
        raise ImportError(f"{spec.name} is broken here: undefined symbol")

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError(f"{module.__name__} is broken here")


QUESTIONS: Final[Mapping[str, Callable[[str], dict[str, Any]]]] = {
    "light_import": light_import,
    "plain_probe": plain_probe,
    "crippled_probe": crippled_probe,
    "core_changes": core_changes,
}

if __name__ == "__main__":
    question, asked, target = sys.argv[1:4]
    Path(target).write_text(json.dumps(QUESTIONS[question](asked)), encoding="utf-8")
