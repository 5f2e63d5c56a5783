"""The figures of a replay, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from baseboard.testing.replay.run import Cluster, ReplayResult

_PERCENTILES: Final = (50, 90, 99)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of ``values`` do not exceed (nearest rank); ``values`` not empty."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]


def summarise(result: ReplayResult, cluster: Cluster) -> dict[str, Any]:
    """All figures, ready for JSON. Times in seconds."""
    counters = result.counters
    used = [moment.used_blocks / cluster.num_blocks for moment in result.moments]
    paces = [pace for life in result.lives if (pace := life.tpot) is not None]
    return {
        "seconds": result.seconds,
        "requests_per_second": _ratio(counters["num_requests"], result.seconds),
        "tokens_per_second": _ratio(counters["num_generated_tokens"], result.seconds),
        "hit_ratio": _ratio(counters["prefix_hits"], counters["prefix_queries"]),
        "ttft": _percentiles([life.ttft for life in result.lives]),
        "time_per_output_token": _percentiles(paces),
        "occupancy": {"mean": _ratio(sum(used), len(used)), "max": max(used, default=0.0)},
        "queue": {"max": max((moment.num_waiting for moment in result.moments), default=0)},
        "counters": dict(counters),
        "refused": list(result.refused),
    }


def as_text(summary: dict[str, Any]) -> str:
    """The same for a terminal."""
    counters = summary["counters"]
    lines = [
        f"{counters['num_requests']:,} requests in {summary['seconds']:,.0f} s: "
        f"{summary['requests_per_second']:.2f} requests/s, {summary['tokens_per_second']:,.0f} tokens/s",
        f"prefix cache     {summary['hit_ratio']:.1%} of {counters['prefix_queries']:,} prompt tokens, "
        f"{counters['prefix_evictions']:,} evictions",
        f"first token      {_spread(summary['ttft'])}",
        f"per output token {_spread(summary['time_per_output_token'])}",
        f"occupancy        mean {summary['occupancy']['mean']:.1%}, highest {summary['occupancy']['max']:.1%}",
        f"longest queue    {summary['queue']['max']:,} requests",
        f"preemptions      {counters['num_preemptions']:,} ({counters['num_swaps_out']:,} by swap), "
        f"{counters['num_recomputed_tokens']:,} tokens computed again",
    ]
    if summary["refused"]:
        lines.append(f"refused          {len(summary['refused'])}, the first: {summary['refused'][0]}")
    return "\n".join(lines)


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    return {f"p{percent}": percentile(values, percent) for percent in _PERCENTILES} if values else None


def _spread(percentiles: dict[str, float] | None) -> str:
    if percentiles is None:
        return "none"
    return ", ".join(f"{name} {seconds * 1000:,.0f} ms" for name, seconds in percentiles.items())


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
