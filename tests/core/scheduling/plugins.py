"""Scheduling plugins made of plain Python, and registries of them."""

from __future__ import annotations

from baseboard.discovery import Installation, find_registry
from baseboard.scheduling import ExtensionParts, PolicyParts, RequestSpec, hookimpl
from core.discovery.fakes import source


class Arrivals:
    """A rank that does what the built-in one does."""

    def key(self, spec: RequestSpec) -> tuple[int, ...]:
        return (spec.arrival,)


class PolicyPlugin:
    """``policy=NAME``; what is not given is as built in."""

    def __init__(self, rank: object = None, **parts: object) -> None:
        self.parts = PolicyParts(Arrivals() if rank is None else rank, **parts)

    @hookimpl
    def scheduling_version(self) -> str:
        return "1.0"

    @hookimpl
    def policy(self) -> PolicyParts:
        return self.parts


class ExtensionPlugin:
    def __init__(self, **parts: object) -> None:
        self.parts = ExtensionParts(**parts)

    @hookimpl
    def scheduling_version(self) -> str:
        return "1.0"

    @hookimpl
    def extension(self) -> ExtensionParts:
        return self.parts


class PreemptionPlugin:
    def __init__(self, role: object) -> None:
        self.role = role

    @hookimpl
    def scheduling_version(self) -> str:
        return "1.0"

    @hookimpl
    def preemption(self) -> object:
        return self.role


class ConnectorPlugin:
    def __init__(self, role: object) -> None:
        self.role = role

    @hookimpl
    def scheduling_version(self) -> str:
        return "1.0"

    @hookimpl
    def prefix_source(self) -> object:
        return self.role


def installed(**plugins: object) -> Installation:
    return Installation(scheduling=tuple(source(name, plugin) for name, plugin in plugins.items()))


def registry(**plugins: object):
    return find_registry(installed(**plugins))
