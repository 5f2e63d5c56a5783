"""Loading backend plugins, each in isolation, each with a record of how it went."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pluggy

from baseboard.contract import API_VERSION, PROJECT, BackendUnavailable, DiscoveryHooks
from baseboard.discovery.handshake import ContractVersion, check_version
from baseboard.discovery.hookcheck import check_complete, check_spelling, hook_names, register, specify
from baseboard.discovery.installation import BACKENDS_VARIABLE, Installation, PluginSource
from baseboard.discovery.isolation import Failure, attempt


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """A plugin that was found. Either ``hooks`` or ``reason`` is given."""

    name: str
    sources: tuple[PluginSource, ...]  #: one, or all that claim the name
    contract_version: str | None = None  #: as the plugin announced it
    hooks: DiscoveryHooks | None = None  #: where it is loaded
    reason: str | None = None  #: why it is not loaded, on one line


def load_plugins(installation: Installation) -> tuple[PluginRecord, ...]:
    """A record for every backend found, by name. Raises ``BackendUnavailable`` only for a wrong restriction."""
    groups = by_name(installation.backends)
    only = installation.only_backends
    unknown = [name for name in only or () if name not in groups]
    if unknown:
        raise BackendUnavailable(
            f"{BACKENDS_VARIABLE} names {', '.join(unknown)}, which is not installed; "
            f"installed are: {', '.join(groups) or 'none'}"
        )
    return tuple(_record(name, sources, only) for name, sources in groups.items())


def by_name(sources: Iterable[PluginSource]) -> dict[str, tuple[PluginSource, ...]]:
    """Sources grouped by the name they claim, names sorted."""
    groups: dict[str, tuple[PluginSource, ...]] = {}
    for source in sorted(sources, key=lambda s: (s.name, s.distribution)):
        groups[source.name] = (*groups.get(source.name, ()), source)
    return groups


def name_clash(sources: tuple[PluginSource, ...]) -> str | None:
    """Why none of the plugins that share a name can be used; None where there is only one."""
    if len(sources) == 1:
        return None
    origins = " and ".join(source.origin for source in sources)
    return f"{len(sources)} plugins have the name {sources[0].name!r}: {origins}; uninstall all but one"


def _record(name: str, sources: tuple[PluginSource, ...], only: tuple[str, ...] | None) -> PluginRecord:
    if only is not None and name not in only:
        return PluginRecord(name, sources, reason=f"not loaded: left out by {BACKENDS_VARIABLE}={','.join(only)}")
    clash = name_clash(sources)
    if clash is not None:
        return PluginRecord(name, sources, reason=clash)
    return _load(sources[0])


def _load(source: PluginSource) -> PluginRecord:
    """Import the plugin, agree on the version, and only then hold it to the hooks of that version."""
    refused = partial(PluginRecord, source.name, (source,))
    plugin = attempt(source.load)
    if isinstance(plugin, Failure):
        return refused(reason=f"import of {source.value} failed: {plugin.reason}")
    manager = pluggy.PluginManager(PROJECT)
    announced = attempt(partial(_announced_version, manager, plugin, source))
    if isinstance(announced, Failure):
        return refused(reason=announced.reason)
    version = None if announced is None else str(announced)
    checked = attempt(partial(_check, manager, announced, source))
    if isinstance(checked, Failure):
        return refused(version, reason=checked.reason)
    return PluginRecord(source.name, (source,), version, hooks=cast("DiscoveryHooks", manager.hook))


def _announced_version(manager: pluggy.PluginManager, plugin: object, source: PluginSource) -> ContractVersion | None:
    """None where the plugin has no such hook: perhaps a misspelling, which the check afterwards explains.

    No hooks are specified yet. So a plugin written for another version is told of the version, not of the
    arguments that it adds.
    """
    register(manager, plugin, source.value)
    caller: Any = getattr(manager.hook, "contract_version", None)
    if caller is None:
        return None
    answers: list[object] = caller()
    return ContractVersion.parse(answers[0] if answers else None)


def _check(manager: pluggy.PluginManager, announced: ContractVersion | None, source: PluginSource) -> None:
    if announced is not None:
        check_version(announced, ContractVersion.parse(API_VERSION), source.distribution)
    specify(manager, DiscoveryHooks)
    check_spelling(manager, DiscoveryHooks)
    check_complete(manager, hook_names(DiscoveryHooks))
