"""Replays recorded traffic on the real scheduler and KV manager, with a device that only takes time."""

from baseboard.testing.replay.costs import StepCosts
from baseboard.testing.replay.page import as_page
from baseboard.testing.replay.prefix import PrefixCount, count_prefix_hits
from baseboard.testing.replay.run import Cluster, ReplayResult, replay
from baseboard.testing.replay.summary import as_text, summarise
from baseboard.testing.replay.trace import Trace, TraceError, TraceRequest, read_trace

__all__ = [
    "Cluster",
    "PrefixCount",
    "ReplayResult",
    "StepCosts",
    "Trace",
    "TraceError",
    "TraceRequest",
    "as_page",
    "as_text",
    "count_prefix_hits",
    "read_trace",
    "replay",
    "summarise",
]
