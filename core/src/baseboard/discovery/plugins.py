"""Loading backend plugins, each in isolation, each with a record of how it went."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, cast

from baseboard.contract import API_VERSION, BackendUnavailable, DiscoveryHooks
from baseboard.discovery.hookcheck import hook_names
from baseboard.discovery.installation import BACKENDS_VARIABLE, Installation, PluginSource
from baseboard.discovery.loading import Kind, load

_KIND: Final = Kind(DiscoveryHooks, hook_names(DiscoveryHooks), API_VERSION, "contract_version", "contract")


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
    loaded = load(source, _KIND)
    return PluginRecord(
        source.name, (source,), loaded.version, cast("DiscoveryHooks | None", loaded.hook), loaded.reason
    )
