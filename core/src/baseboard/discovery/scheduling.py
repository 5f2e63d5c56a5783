"""Scheduling plugins: found, loaded in isolation, listed with their reasons, and made into a registry."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, cast

from baseboard.discovery.hookcheck import hook_names
from baseboard.discovery.installation import Installation, PluginSource, read_installation
from baseboard.discovery.loading import Kind, load
from baseboard.discovery.plugins import by_name, name_clash
from baseboard.discovery.probe import source_as_dict
from baseboard.scheduler.policy import POLICIES, PREEMPTIONS, Policy
from baseboard.scheduler.registry import Registry
from baseboard.scheduling.hookspecs import SCHEDULING_VERSION, SchedulingHooks
from baseboard.scheduling.making import Plugin

_VERSION_HOOK: Final = "scheduling_version"
_KIND: Final = Kind(SchedulingHooks, (_VERSION_HOOK,), SCHEDULING_VERSION, _VERSION_HOOK, "scheduling hooks")
#: What a plugin can bring, by hook, in the words of those who ask for it.
OFFERS: Final = MappingProxyType(
    {"policy": "policy", "extension": "extension", "preemption": "preemption", "prefix_source": "connector"}
)


@dataclass(frozen=True, slots=True)
class SchedulingReport:
    """A plugin that was found. Either ``plugin`` or ``reason`` is given."""

    name: str
    sources: tuple[PluginSource, ...]  #: one, or all that claim the name
    version: str | None = None  #: of the scheduling hooks, as the plugin announced it
    offers: tuple[str, ...] = ()  #: of ``OFFERS``, the hooks it implements
    plugin: Plugin | None = None
    reason: str | None = None  #: why it cannot be used, on one line

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "offers": [OFFERS[hook] for hook in self.offers],
            "scheduling_version": self.version,
            "reason": self.reason,
            "sources": [source_as_dict(source) for source in self.sources],
        }


def examine_scheduling(installation: Installation | None = None) -> tuple[SchedulingReport, ...]:
    """A report for every scheduling plugin, by name; by default those of this process. Loads each; never raises."""
    here = read_installation() if installation is None else installation
    return tuple(_report(name, sources) for name, sources in by_name(here.scheduling).items())


def find_registry(installation: Installation | None = None) -> Registry:
    """All that scheduling plugins bring, ready for ``make_roles``; nothing in it is made yet. Never raises."""
    reports = examine_scheduling(installation)
    plugins = {hook: {r.name: r.plugin for r in reports if r.plugin and hook in r.offers} for hook in OFFERS}
    return Registry(
        services={name: plugin.service for name, plugin in plugins["policy"].items()},
        extensions={name: plugin.extras for name, plugin in plugins["extension"].items()},
        preemptions={name: plugin.preemption for name, plugin in plugins["preemption"].items()},
        sources={name: plugin.source for name, plugin in plugins["prefix_source"].items()},
        failures={report.name: report.reason for report in reports if report.reason is not None},
    )


def registry_for(policy: Policy) -> Registry:
    """What the names in ``policy`` may mean; nothing is looked for where all of them are the core's own."""
    return Registry() if policy.built_in else find_registry()


def _report(name: str, sources: tuple[PluginSource, ...]) -> SchedulingReport:
    clash = name_clash(sources)
    if clash is None and name in {*POLICIES, *PREEMPTIONS}:
        clash = f"{name!r} is the core's own name, and {sources[0].origin} claims it: it needs another"
    if clash is not None:
        return SchedulingReport(name, sources, reason=clash)
    loaded = load(sources[0], _KIND)
    if loaded.reason is not None:
        return SchedulingReport(name, sources, loaded.version, reason=loaded.reason)
    offers = tuple(hook for hook in OFFERS if getattr(loaded.hook, hook).get_hookimpls())
    if not offers:
        wanted = ", ".join(hook for hook in hook_names(SchedulingHooks) if hook != _VERSION_HOOK)
        return SchedulingReport(name, sources, loaded.version, reason=f"it implements none of {wanted}")
    return SchedulingReport(name, sources, loaded.version, offers, Plugin(name, cast("SchedulingHooks", loaded.hook)))
