"""Instruments: plugins that wrap backend hooks, for tracing, metrics, fault injection and argument checks.

They cost time on every call, so none is active unless ``BASEBOARD_INSTRUMENTS`` or the caller names it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pluggy

from baseboard.contract import PROJECT, BackendHooks, BackendUnavailable
from baseboard.discovery.hookcheck import check_only_wrappers, check_spelling, register, specify
from baseboard.discovery.installation import Installation, PluginSource
from baseboard.discovery.isolation import Failure, attempt
from baseboard.discovery.plugins import by_name, name_clash
from baseboard.discovery.probe import source_as_dict


@dataclass(frozen=True, slots=True)
class Instrument:
    """An instrument ready to be registered beside a backend."""

    name: str
    plugin: object


@dataclass(frozen=True, slots=True)
class InstrumentReport:
    """An instrument that was found. ``reason`` says why it cannot be used; None where it can."""

    name: str
    sources: tuple[PluginSource, ...]
    active: bool  #: the environment names it
    reason: str | None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "active": self.active,
            "reason": self.reason,
            "sources": [source_as_dict(source) for source in self.sources],
        }


def examine_instruments(installation: Installation) -> tuple[InstrumentReport, ...]:
    """A report for every instrument found. Loads each; never raises."""
    reports: list[InstrumentReport] = []
    for name, sources in by_name(installation.instruments).items():
        loaded = attempt(partial(_load, name, sources))
        reason = loaded.reason if isinstance(loaded, Failure) else None
        reports.append(InstrumentReport(name, sources, name in installation.active_instruments, reason))
    return tuple(reports)


def select_instruments(installation: Installation, extra: Sequence[object]) -> tuple[Instrument, ...]:
    """The instruments for one backend: those the environment names, then ``extra`` (names, or instruments themselves).

    Each backend gets instances of its own where the entry point is a class or a function. Whoever names an instrument
    wants it: one that is not installed or broken raises ``BackendUnavailable`` with the reason.
    """
    names = dict.fromkeys((*installation.active_instruments, *(item for item in extra if isinstance(item, str))))
    groups = by_name(installation.instruments)
    chosen: list[Instrument] = []
    for name in names:
        if name not in groups:
            raise BackendUnavailable(
                f"instrument {name!r} is not installed; installed are: {', '.join(groups) or 'none'}"
            )
        loaded = attempt(partial(_load, name, groups[name]))
        if isinstance(loaded, Failure):
            raise BackendUnavailable(f"instrument {name!r} cannot be used: {loaded.reason}") from loaded.error
        chosen.append(loaded)
    given = [item for item in extra if not isinstance(item, str)]
    chosen += [_checked(Instrument(f"instrument {number}", item)) for number, item in enumerate(given)]
    return tuple(chosen)


def _load(name: str, sources: tuple[PluginSource, ...]) -> Instrument:
    clash = name_clash(sources)
    if clash is not None:
        raise BackendUnavailable(clash)
    value = sources[0].load()
    if inspect.isclass(value) or inspect.isroutine(value):
        value = cast("Callable[[], object]", value)()
    return _checked(Instrument(name, value))


def _checked(instrument: Instrument) -> Instrument:
    """The instrument, tried in a manager of its own. Raises ``ContractError``."""
    manager = pluggy.PluginManager(PROJECT)
    specify(manager, BackendHooks)
    register(manager, instrument.plugin, instrument.name)
    check_spelling(manager, BackendHooks)
    check_only_wrappers(manager, instrument.name)
    return instrument
