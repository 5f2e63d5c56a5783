"""A replay as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from string import Template
from typing import Any, Final

from baseboard.testing.replay.run import Cluster, ReplayResult
from baseboard.testing.replay.summary import as_text

_WIDTH: Final = 860
_HEIGHT: Final = 220
_LEFT: Final = 64
_BOTTOM: Final = 28
_TOP: Final = 12
_COLOURS: Final = ("#2563eb", "#d97706", "#059669")
_POINTS: Final = 600

_PAGE: Final = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>$title</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; color: #1f2937; max-width: 920px; margin: 2rem auto; padding: 0 1rem }
  h1 { font-size: 1.3rem } h2 { font-size: 1.05rem; margin: 2rem 0 .3rem }
  pre { background: #f3f4f6; padding: .8rem 1rem; border-radius: 6px; overflow-x: auto }
  svg { width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif; fill: #6b7280 }
  .key { font-size: 13px; color: #4b5563; margin-right: 1rem }
  .key i { display: inline-block; width: 12px; height: 3px; vertical-align: middle; margin-right: 6px }
</style></head><body>
<h1>$title</h1><p>$cluster</p><pre>$summary</pre>
$charts
</body></html>
""")


@dataclass(frozen=True, slots=True)
class Curve:
    name: str
    points: Sequence[tuple[float, float]]  #: (seconds, value)


def as_page(result: ReplayResult, summary: dict[str, Any], cluster: Cluster, title: str) -> str:
    """Figures and three charts over time: occupancy, requests, latency."""
    moments = result.moments
    lives = sorted(result.lives, key=lambda life: life.first_token)
    lives = lives[:: max(1, len(lives) // _POINTS)]
    charts = (
        ("KV blocks in use (% of the pool)", [
            Curve("in use", [(m.seconds, 100 * m.used_blocks / cluster.num_blocks) for m in moments]),
        ]),
        ("Requests", [
            Curve("running", [(m.seconds, m.num_running) for m in moments]),
            Curve("waiting", [(m.seconds, m.num_waiting) for m in moments]),
            Curve("swapped", [(m.seconds, m.num_swapped) for m in moments]),
        ]),
        ("Time to first token (s), by the time it came", [
            Curve("first token", [(life.first_token, life.ttft) for life in lives]),
        ]),
    )  # fmt: skip
    return _PAGE.substitute(
        title=escape(title),
        cluster=escape(
            f"{cluster.num_blocks:,} blocks of {cluster.block_size} tokens, {cluster.num_host_blocks:,} host blocks, "
            f"{cluster.max_num_batched_tokens:,} tokens a step, {cluster.max_num_seqs} sequences at once"
        ),
        summary=escape(as_text(summary)),
        charts="\n".join(_chart(name, curves) for name, curves in charts),
    )


def _chart(name: str, curves: Sequence[Curve]) -> str:
    points = [point for curve in curves for point in curve.points]
    right = max((x for x, _ in points), default=1.0) or 1.0
    top = max((y for _, y in points), default=1.0) or 1.0
    lines = "".join(_line(curve, colour, right, top) for curve, colour in zip(curves, _COLOURS, strict=False))
    keys = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{escape(curve.name)}</span>'
        for curve, colour in zip(curves, _COLOURS, strict=False)
    )
    frame = f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' aria-label='{escape(name, quote=True)}'>"
    return f"<h2>{escape(name)}</h2>{keys}{frame}{_axes(right, top)}{lines}</svg>"


def _axes(right: float, top: float) -> str:
    parts: list[str] = []
    for step in range(5):
        share = step / 4
        y = _y(share * top, top)
        x = _x(share * right, right)
        parts.append(f"<line x1='{_LEFT}' y1='{y:.1f}' x2='{_WIDTH}' y2='{y:.1f}' stroke='#e5e7eb'/>")
        parts.append(f"<text x='{_LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>{share * top:,.4g}</text>")
        anchor = "end" if step == 4 else "middle"
        parts.append(f"<text x='{x:.1f}' y='{_HEIGHT - 8}' text-anchor='{anchor}'>{share * right:,.0f} s</text>")
    return "".join(parts)


def _line(curve: Curve, colour: str, right: float, top: float) -> str:
    path = " ".join(f"{_x(x, right):.1f},{_y(y, top):.1f}" for x, y in curve.points)
    return f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.5'/>"


def _x(value: float, right: float) -> float:
    return _LEFT + (_WIDTH - _LEFT) * value / right


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value / top
