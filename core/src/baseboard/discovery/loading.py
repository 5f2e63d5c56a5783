"""Loading one plugin of whatever kind: import it, agree on the version, and only then hold it to the hooks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pluggy

from baseboard.contract import PROJECT
from baseboard.discovery.handshake import ContractVersion, check_version
from baseboard.discovery.hookcheck import check_complete, check_spelling, register, specify
from baseboard.discovery.installation import PluginSource
from baseboard.discovery.isolation import Failure, attempt


@dataclass(frozen=True, slots=True)
class Kind:
    """What plugins of one entry-point group have to keep."""

    hooks: type  #: the specification
    required: tuple[str, ...]  #: hooks that no plugin may leave out
    version: str  #: of this core
    version_hook: str  #: tells the plugin's
    noun: str  #: what the version is of


@dataclass(frozen=True, slots=True)
class Loaded:
    """How it went: either ``hook`` or ``reason`` is given."""

    version: str | None = None  #: as the plugin announced it
    hook: Any = None  #: the plugin's hooks, to be called by keyword
    reason: str | None = None  #: on one line


def load(source: PluginSource, kind: Kind) -> Loaded:
    """Never raises: what a plugin does wrong is a reason."""
    plugin = attempt(source.load)
    if isinstance(plugin, Failure):
        return Loaded(reason=f"import of {source.value} failed: {plugin.reason}")
    manager = pluggy.PluginManager(PROJECT)
    announced = attempt(partial(_announced_version, manager, plugin, source, kind))
    if isinstance(announced, Failure):
        return Loaded(reason=announced.reason)
    version = None if announced is None else str(announced)
    checked = attempt(partial(_check, manager, announced, source, kind))
    if isinstance(checked, Failure):
        return Loaded(version, reason=checked.reason)
    return Loaded(version, manager.hook)


def _announced_version(
    manager: pluggy.PluginManager, plugin: object, source: PluginSource, kind: Kind
) -> ContractVersion | None:
    """None where the plugin has no such hook: perhaps a misspelling, which the check afterwards explains.

    No hooks are specified yet. So a plugin written for another version is told of the version, not of the
    arguments that it adds.
    """
    register(manager, plugin, source.value)
    caller: Any = getattr(manager.hook, kind.version_hook, None)
    if caller is None:
        return None
    answers: list[object] = caller()
    return ContractVersion.parse(answers[0] if answers else None, kind.version_hook)


def _check(manager: pluggy.PluginManager, announced: ContractVersion | None, source: PluginSource, kind: Kind) -> None:
    if announced is not None:
        check_version(announced, ContractVersion.parse(kind.version), source.distribution, kind.noun)
    specify(manager, kind.hooks)
    check_spelling(manager, kind.hooks)
    check_complete(manager, kind.required)
