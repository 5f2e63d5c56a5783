"""What the user asked for when opening the backend."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from baseboard.contract import BackendUnavailable
from baseboard_cpu_avx512.cpu import read_cpu
from baseboard_cpu_avx512.levels import Level
from baseboard_cpu_avx512.library import open_library

KernelsName: TypeAlias = Literal["own", "ipex"]

_FORCED_LEVEL: Final = "BASEBOARD_CPU_LEVEL"
_FORCED_KERNELS: Final = "BASEBOARD_CPU_KERNELS"
_KERNELS: Final = get_args(KernelsName)
_OPTIONS: Final = frozenset({"bind", "device", "kernels", "level", "threads"})


@dataclass(frozen=True, slots=True)
class Settings:
    """Resolved once, when the backend is opened."""

    kernels: KernelsName  #: of attention
    level: Level
    max_threads: int  #: never more than physical cores that this process may use
    bound_cores: tuple[int, ...]  #: that workers are bound to, one to each; empty: the system places them


def read_settings(options: Mapping[str, Any]) -> Settings:
    """``options`` checked against the host. Raises ``BackendUnavailable`` naming option, value and limit."""
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        raise BackendUnavailable(
            f"the cpu_avx512 backend has no option {', '.join(unknown)}: it has bind, kernels, level and threads"
        )
    kernels = _kernels(options)
    if kernels == "ipex" and "threads" in options:
        raise BackendUnavailable(
            f"threads={options['threads']!r} is not possible with kernels='ipex', which takes as many threads as torch "
            "uses: set OMP_NUM_THREADS, or leave threads out"
        )
    return Settings(kernels, _level(options), _threads(options.get("threads")), _bound_cores(options.get("bind")))


def default_kernels() -> str:
    """The kernels that attention gets where no option says so; maybe a name that will be refused."""
    return os.environ.get(_FORCED_KERNELS) or "own"


def _kernels(options: Mapping[str, Any]) -> KernelsName:
    device = options.get("device")
    name = options.get("kernels", device if device in _KERNELS else default_kernels())
    if device in _KERNELS and name != device:
        raise BackendUnavailable(f"kernels={name!r} contradicts cpu_avx512:{device}: say it once")
    for known in _KERNELS:
        if name == known:
            return known
    raise BackendUnavailable(f"kernels={name!r} is not known to the cpu_avx512 backend: {', '.join(_KERNELS)}")


def _level(options: Mapping[str, Any]) -> Level:
    library = open_library()
    host, preferred = Level(library.bb_host_level()), Level(library.bb_preferred_level())
    name = options.get("level", options.get("device"))
    if name is None or name in _KERNELS:
        name = os.environ.get(_FORCED_LEVEL) or preferred.name
    if name == "cpu":
        return preferred
    if name not in Level.names():
        raise BackendUnavailable(f"level {name!r} is not known to the cpu_avx512 backend: {', '.join(Level.names())}")
    if Level[name] > host:
        raise BackendUnavailable(f"level {name} is above this CPU's, {host.name}: {host.missing()}")
    return Level[name]


def _threads(asked: object) -> int:
    cores = len(read_cpu().cores)
    if asked is None:
        return cores
    try:
        threads = int(asked)  # pyright: ignore[reportArgumentType]  # whatever the user gave: a refusal is the answer
    except (TypeError, ValueError):
        threads = 0
    if not 1 <= threads <= cores:
        raise BackendUnavailable(f"threads={asked!r} is not possible: 1 to {cores}, the cores this process may use")
    return threads


def _bound_cores(asked: object) -> tuple[int, ...]:
    if asked not in (None, "none", "cores"):
        raise BackendUnavailable(f"bind={asked!r} is not possible: none, or cores for a worker on each physical core")
    return read_cpu().cores if asked == "cores" else ()
