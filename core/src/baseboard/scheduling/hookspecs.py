"""The hooks of a scheduling plugin: what the entry point (group ``baseboard.scheduling``) names implements them.

Each plugin is registered in a plugin manager of its own. The hooks are called when a scheduler is made, once for each,
and only those that a user's choice needs; the roles they give are called directly, behind guards.
"""

from __future__ import annotations

from typing import Final, Protocol

import pluggy

from baseboard.scheduling.parts import ExtensionParts, PolicyParts, Settings
from baseboard.scheduling.roles import Connector, Preemption

PROJECT: Final = "baseboard"
SCHEDULING_GROUP: Final = "baseboard.scheduling"
#: ``major.minor`` of these hooks, the roles they give and the views that the roles see. It is not the contract's.
SCHEDULING_VERSION: Final = "1.0"

hookspec: Final = pluggy.HookspecMarker(PROJECT)
#: Marks a function or method as the implementation of a hook.
hookimpl: Final = pluggy.HookimplMarker(PROJECT)


class SchedulingHooks(Protocol):
    """``scheduling_version`` and at least one of the others."""

    @hookspec(firstresult=True)
    def scheduling_version(self) -> str:
        """The version the plugin was written for, ``"1.0"``. The core accepts its own minor and the one before."""
        ...

    @hookspec(firstresult=True)
    def policy(self, settings: Settings) -> PolicyParts:
        """What ``policy=NAME`` means: who comes first, and whatever belongs to that."""
        ...

    @hookspec(firstresult=True)
    def extension(self, settings: Settings) -> ExtensionParts:
        """What ``extensions=[NAME]`` adds to any policy."""
        ...

    @hookspec(firstresult=True)
    def preemption(self, settings: Settings) -> Preemption:
        """What ``preemption=NAME`` means: how blocks are got back from a running request."""
        ...

    @hookspec(firstresult=True)
    def prefix_source(self, settings: Settings) -> Connector:
        """What ``connector=NAME`` means: where keys and values may be had that were computed elsewhere."""
        ...
