"""The backend for x86-64 CPUs: paged attention for AVX2, AVX-512, AVX-512 BF16 and AMX.

This module is what its entry point names. It loads no torch until a backend is opened; the small kernel library, which
says what this CPU can do, depends on nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from baseboard.contract import API_VERSION, BackendUnavailable, DeviceInfo, hookimpl
from baseboard.kit.host_memory import read_host_memory
from baseboard_cpu_avx512.cpu import read_cpu
from baseboard_cpu_avx512.ipex.installation import obstacle
from baseboard_cpu_avx512.levels import Level
from baseboard_cpu_avx512.library import LibraryError, open_library
from baseboard_cpu_avx512.settings import default_kernels, read_settings

_NO_TORCH = "torch is not installed: pip install 'baseboard[torch]'"
_PRIORITY = 10  #: above the reference backend, below any accelerator


@hookimpl
def contract_version() -> str:
    return API_VERSION


@hookimpl
def probe_devices() -> list[DeviceInfo]:
    cpu = read_cpu()
    level, above, reason = _levels()
    if reason is None and find_spec("torch") is None:
        reason = _NO_TORCH
    details = {
        "level": level.name,
        "other levels": above,
        "kernels": _kernels(),
        "cores used": cpu.describe_cores(),
        "NUMA nodes": cpu.describe_nodes(),
        "options": "level: " + ", ".join(Level.names()) + "; threads: most threads to use; bind: none, cores; "
        "kernels: own, ipex",
    }
    return [
        DeviceInfo(
            backend="cpu_avx512",
            device_type="cpu",
            index=0,
            name=cpu.name,
            arch=level.name if level is not Level.none else cpu.machine,
            total_memory=read_host_memory().total,
            available=reason is None,
            reason=reason,
            priority=_PRIORITY,
            details=details,
        )
    ]


@hookimpl
def open_backend(device: DeviceInfo, options: Mapping[str, Any]) -> object:
    """Open the CPU. Options: ``level``, ``kernels`` (either may be a device suffix, ``cpu_avx512:avx2`` or
    ``cpu_avx512:ipex``), ``threads`` and ``bind``.

    ``BASEBOARD_CPU_LEVEL`` and ``BASEBOARD_CPU_KERNELS`` in the environment say it where no option does.
    """
    if not device.available:
        raise BackendUnavailable(f"the cpu_avx512 backend cannot be opened: {device.reason}")
    from baseboard_cpu_avx512.backend import CpuBackend

    return CpuBackend(read_settings(options))


def _levels() -> tuple[Level, str, str | None]:
    """The level that would be used, what is said of those above it, and why the backend cannot be used."""
    try:
        library = open_library()
    except LibraryError as error:
        return Level.none, "unknown", str(error)
    host, preferred = Level(library.bb_host_level()), Level(library.bb_preferred_level())
    if host is Level.none:
        return host, host.missing(), f"the CPU lacks {host.missing()}: the reference backend runs here"
    above = host.missing() or "none above it"
    if preferred < host:
        above = f"{host.name} runs too, but {preferred.name} is faster on this CPU"
    return preferred, above, None


def _kernels() -> str:
    """The kernels that attention gets unless asked otherwise, and whether IPEX's could be had."""
    return f"{default_kernels()}; " + (obstacle() or "kernels='ipex' can be had")
