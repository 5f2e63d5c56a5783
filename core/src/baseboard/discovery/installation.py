"""What is installed here, and what the environment says about it: read once, then frozen."""

# importlib_metadata leaves its keyword arguments without a type:
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import importlib_metadata

from baseboard.contract import BACKENDS_GROUP, INSTRUMENTS_GROUP
from baseboard.discovery.isolation import Failure, attempt
from baseboard.scheduling import SCHEDULING_GROUP

BACKENDS_VARIABLE = "BASEBOARD_BACKENDS"
INSTRUMENTS_VARIABLE = "BASEBOARD_INSTRUMENTS"


class InstalledDistribution(Protocol):
    """What is read of a distribution. Any of these may raise where the installation is damaged."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def entry_points(self) -> Iterable[importlib_metadata.EntryPoint]: ...
    def locate_file(self, path: str, /) -> object: ...


@dataclass(frozen=True, slots=True)
class PluginSource:
    """One entry point, and the distribution that brought it."""

    name: str
    value: str  #: ``"package.module"`` or ``"package.module:object"``
    distribution: str
    version: str  #: of the distribution
    load: Callable[[], object]  #: imports it; may raise anything

    @property
    def origin(self) -> str:
        """``baseboard-cuda 1.0 (baseboard_cuda.plugin)``."""
        return f"{self.distribution} {self.version} ({self.value})"


@dataclass(frozen=True, slots=True)
class Installation:
    """All that discovery reads from outside, so that a test hands in what it likes."""

    backends: tuple[PluginSource, ...] = ()
    instruments: tuple[PluginSource, ...] = ()
    scheduling: tuple[PluginSource, ...] = ()
    only_backends: tuple[str, ...] | None = None  #: nothing else is even imported; None: no such restriction
    active_instruments: tuple[str, ...] = ()  #: outermost first
    notes: tuple[str, ...] = ()  #: distributions that could not be read


def read_installation(
    distributions: Iterable[InstalledDistribution] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Installation:
    """Read entry points and environment variables; by default those of this process.

    Distributions are read one by one (``importlib_metadata.entry_points`` reads them together), because one with a
    malformed ``entry_points.txt`` must not hide the others. Of two with one name the first on the path counts.
    """
    found = _installed() if distributions is None else distributions
    environment = os.environ if variables is None else variables
    sources: dict[str, list[PluginSource]] = {BACKENDS_GROUP: [], INSTRUMENTS_GROUP: [], SCHEDULING_GROUP: []}
    notes: list[str] = []
    seen: set[str] = set()
    for distribution in found:
        points = attempt(lambda d=distribution: [e for e in d.entry_points if e.group in sources])
        if isinstance(points, Failure):
            notes.append(f"the entry points of {_label(distribution)} cannot be read: {points.reason}")
        elif points and (label := _label(distribution)) not in seen:
            seen.add(label)
            for point in points:
                sources[point.group].append(_source(point, distribution))
    return Installation(
        backends=tuple(sources[BACKENDS_GROUP]),
        instruments=tuple(sources[INSTRUMENTS_GROUP]),
        scheduling=tuple(sources[SCHEDULING_GROUP]),
        only_backends=_names(environment, BACKENDS_VARIABLE) or None,
        active_instruments=_names(environment, INSTRUMENTS_VARIABLE),
        notes=tuple(notes),
    )


def _installed() -> Iterable[InstalledDistribution]:
    return cast("Iterable[InstalledDistribution]", importlib_metadata.distributions())


def _source(point: importlib_metadata.EntryPoint, distribution: InstalledDistribution) -> PluginSource:
    version = attempt(lambda: distribution.version)
    return PluginSource(
        name=point.name,
        value=point.value,
        distribution=_label(distribution),
        version="of unknown version" if isinstance(version, Failure) else version,
        load=point.load,
    )


def _label(distribution: InstalledDistribution) -> str:
    """The distribution's name; where its metadata is damaged, where it lies."""
    name = attempt(lambda: distribution.name)
    return f"a distribution in {distribution.locate_file('')}" if isinstance(name, Failure) else name


def _names(environment: Mapping[str, str], variable: str) -> tuple[str, ...]:
    """The comma-separated names in ``variable``, without repetition; blank is the same as unset."""
    names = (name.strip() for name in environment.get(variable, "").split(","))
    return tuple(dict.fromkeys(name for name in names if name))
