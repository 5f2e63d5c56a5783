"""The report as one page that needs nothing else: for a screen of any width, and for paper."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from baseboard_conformance.outcome import Outcome, Result
from baseboard_conformance.outside import listed
from baseboard_conformance.report.document import Document
from baseboard_conformance.report.html_style import STYLE
from baseboard_conformance.report.matrix import Cell, matrix, tallies
from baseboard_conformance.report.replaying import replay_command


def html(document: Document) -> str:
    plain = document.plain
    title = f"{plain['backend']['name']}: {plain['verdict']['word']}"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>",
            *_head(document),
            *_failures(document),
            *_groups(document),
            *_grid(document),
            *_unclaimed(document),
            *_facts(document),
            "</main></body></html>",
            "",
        ]
    )


def _head(document: Document) -> Iterator[str]:
    plain = document.plain
    backend, verdict = plain["backend"], plain["verdict"]
    state = {0: "good", 10: "waived"}.get(verdict["code"], "bad")
    kind = f"Baseboard conformance · contract {plain['spec']} · {plain['profile']}"
    yield f'<header><p class="kind">{escape(kind)}</p>'
    yield f'<h1>{escape(backend["name"])} <span class="verdict {state}">{escape(verdict["word"])}</span></h1>'
    yield f'<p class="lead">{escape(document.lead)}</p>'
    yield f"<p>{escape(_origin(backend))}</p>"
    yield '<ul class="counts">'
    for outcome in Outcome:
        count = verdict["counts"].get(outcome.value, 0)
        if count:
            yield f'<li class="{_state(outcome)}"><b>{count}</b> {escape(outcome.value.replace("_", " ").lower())}</li>'
    yield "</ul></header>"


def _origin(backend: dict[str, Any]) -> str:
    return f"{backend['distribution']} {backend['version']} on {backend['device']['name']}"


def _state(outcome: Outcome) -> str:
    return {Outcome.PASS: "good", Outcome.NOT_CLAIMED: "none", Outcome.WAIVED: "waived"}.get(outcome, "bad")


def _groups(document: Document) -> Iterator[str]:
    yield '<section><h2>What was tried</h2><div class="wide"><table class="groups">'
    yield '<thead><tr><th scope="col">group</th>'
    shown = [o for o in Outcome if any(r.outcome is o for r in document.results)]
    yield "".join(f'<th scope="col">{escape(o.value.replace("_", " ").lower())}</th>' for o in shown)
    yield '<th scope="col">seconds</th></tr></thead><tbody>'
    for tally in tallies(document.results):
        numbers = "".join(f"<td>{tally.counts.get(outcome, '')}</td>" for outcome in shown)
        name = f'<th scope="row" class="{tally.state}">{escape(tally.group)}</th>'
        yield f"<tr>{name}{numbers}<td>{tally.seconds:.1f}</td></tr>"
    yield "</tbody></table></div></section>"


def _failures(document: Document) -> Iterator[str]:
    shown = [r for r in document.results if r.outcome not in {Outcome.PASS, Outcome.NOT_CLAIMED}]
    if not shown:
        return
    yield f"<section><h2>What did not pass ({len(shown)})</h2>"
    for result in shown:
        yield from _failure(document, result)
    yield "</section>"


def _failure(document: Document, result: Result) -> Iterator[str]:
    state = _state(result.outcome)
    sign = f'<span class="verdict {state}">{result.outcome.value}</span>'
    yield f'<article class="{state}"><h3>{sign} {escape(result.case)}</h3>'
    if result.waiver:
        yield f"<p>Waived: {escape(result.waiver)}</p>"
    yield f"<pre>{escape(result.message.strip())}</pre>"
    again = replay_command(result.case, document.asked, document.plain["seed"])
    yield f'<p class="replay"><code>{escape(again)}</code></p>'
    if result.evidence:
        yield f'<p>Inputs: <a href="{escape(result.evidence)}">{escape(result.evidence)}</a></p>'
    yield "</article>"


def _grid(document: Document) -> Iterator[str]:
    grid = matrix(document.results)
    if not grid.features:
        return
    yield "<section><h2>Attention: worst error as a fraction of the allowed</h2>"
    yield '<p class="note">Allowed is twice the error of a naive computation in the same dtype. Above 1 fails. '
    yield "A dot is not declared, and refused as it must be.</p>"
    for dtype in dict.fromkeys(column.dtype for column in grid.columns):
        columns = [column for column in grid.columns if column.dtype == dtype]
        yield f'<h3>{escape(dtype)}</h3><div class="wide"><table class="matrix"><thead><tr><th scope="col">feature</th>'
        yield "".join(f'<th scope="col">{escape(c.size.removeprefix("d"))}</th>' for c in columns)
        yield "</tr></thead><tbody>"
        for feature in grid.features:
            cells = "".join(_cell(grid.cells.get((feature, column))) for column in columns)
            yield f'<tr><th scope="row">{escape(feature.replace("_", " + "))}</th>{cells}</tr>'
        yield "</tbody></table></div>"
    yield "</section>"


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "<td></td>"
    if cell.state == "none":
        return f'<td class="none" title="{cell.num_cases} cases, not declared">·</td>'
    text = f"{cell.ratio:.2f}" if cell.ratio < 10 else f"{cell.ratio:.0f}" if cell.ratio < 1000 else "∞"
    return f'<td class="{cell.state}" title="{cell.num_cases} cases">{text}</td>'


def _unclaimed(document: Document) -> Iterator[str]:
    reasons: dict[str, int] = {}
    for result in document.results:
        if result.outcome is Outcome.NOT_CLAIMED:
            reasons[result.message] = reasons.get(result.message, 0) + 1
    if not reasons:
        return
    yield "<section><h2>What is not claimed</h2><ul>"
    for reason, count in sorted(reasons.items()):
        yield f"<li>{escape(reason)} <small>({count} case{'s' if count > 1 else ''})</small></li>"
    yield "</ul></section>"


def _facts(document: Document) -> Iterator[str]:
    plain = document.plain
    facts: dict[str, Any] = {
        "suite": f"{plain['suite']['name']} {plain['suite']['version']}",
        "manifest": plain["manifest"],
        "seed": plain["seed"],
        "started": plain["started"],
        "took": f"{plain['duration']:.0f} s",
        "command": " ".join(plain["command"]) or "not recorded",
        **{f"capability: {k}": v for k, v in plain["backend"]["capabilities"].items()},
        **{f"device: {k}": v for k, v in plain["backend"]["device"].items() if k != "details"},
        **{k: v for k, v in plain["environment"].items() if k != "libraries"},
        **plain["environment"]["libraries"],
    }
    yield '<section><h2>Where and what</h2><div class="wide"><table class="facts"><tbody>'
    for name, value in facts.items():
        yield f'<tr><th scope="row">{escape(name)}</th><td>{escape(listed(value))}</td></tr>'
    yield "</tbody></table></div></section>"
