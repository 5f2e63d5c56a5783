"""What a scheduling plugin imports: hooks, roles, and the views that roles see. See docs/scheduling.md."""

from baseboard.request.request import RankKey, RequestSpec
from baseboard.request.status import Event, Status
from baseboard.scheduler.gates import Verdict
from baseboard.scheduler.orders import Turn
from baseboard.scheduler.sources import Found, Landing
from baseboard.scheduling.hookspecs import SCHEDULING_GROUP, SCHEDULING_VERSION, SchedulingHooks, hookimpl
from baseboard.scheduling.parts import ExtensionParts, PolicyParts, Settings
from baseboard.scheduling.roles import (
    Arrived,
    Connector,
    Gate,
    How,
    Limit,
    Observer,
    Order,
    Preemption,
    Rank,
    StopRule,
    Transfer,
)
from baseboard.scheduling.views import RequestView, StepView

__all__ = [
    "SCHEDULING_GROUP",
    "SCHEDULING_VERSION",
    "Arrived",
    "Connector",
    "Event",
    "ExtensionParts",
    "Found",
    "Gate",
    "How",
    "Landing",
    "Limit",
    "Observer",
    "Order",
    "PolicyParts",
    "Preemption",
    "Rank",
    "RankKey",
    "RequestSpec",
    "RequestView",
    "SchedulingHooks",
    "Settings",
    "Status",
    "StepView",
    "StopRule",
    "Transfer",
    "Turn",
    "Verdict",
    "hookimpl",
]
