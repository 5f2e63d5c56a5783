"""Finds plugins, isolates each, explains each, opens the one that is wanted."""

from baseboard.discovery.backend import Backend, open_backend
from baseboard.discovery.choose import AUTO, Choice, choose
from baseboard.discovery.doctor import Report, examine, examine_backends
from baseboard.discovery.installation import Installation, PluginSource, read_installation
from baseboard.discovery.instruments import InstrumentReport
from baseboard.discovery.plugins import PluginRecord
from baseboard.discovery.probe import BackendReport, BackendState
from baseboard.discovery.scheduling import SchedulingReport, examine_scheduling, find_registry, registry_for

__all__ = [
    "AUTO",
    "Backend",
    "BackendReport",
    "BackendState",
    "Choice",
    "Installation",
    "InstrumentReport",
    "PluginRecord",
    "PluginSource",
    "Report",
    "SchedulingReport",
    "choose",
    "examine",
    "examine_backends",
    "examine_scheduling",
    "find_registry",
    "open_backend",
    "read_installation",
    "registry_for",
]
