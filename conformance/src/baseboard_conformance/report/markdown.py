"""The report for a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from baseboard_conformance.outcome import Outcome
from baseboard_conformance.report.document import Document
from baseboard_conformance.report.matrix import matrix, tallies
from baseboard_conformance.report.replaying import replay_command

_SIGNS = {"good": "✅", "waived": "🟡", "bad": "❌", "none": "·"}


def markdown(document: Document) -> str:
    return "\n".join(_lines(document)) + "\n"


def _lines(document: Document) -> Iterator[str]:
    plain, results = document.plain, document.results
    backend = plain["backend"]
    yield f"# {backend['name']}: {plain['verdict']['word']}"
    yield ""
    yield f"{document.lead}"
    yield ""
    yield f"* backend: {backend['distribution']} {backend['version']} on {backend['device']['name']}"
    yield f"* contract {plain['spec']}, profile {plain['profile']}, seed {plain['seed']}"
    yield f"* {plain['suite']['name']} {plain['suite']['version']}, manifest {plain['manifest']}"
    yield f"* took {plain['duration']:.0f} s, started {plain['started']}"
    yield ""
    yield "| group | | " + " | ".join(o.value for o in Outcome) + " |"
    yield "| --- | --- |" + " ---: |" * len(Outcome)
    for tally in tallies(results):
        counts = " | ".join(str(tally.counts.get(outcome, "")) for outcome in Outcome)
        yield f"| {tally.group} | {_SIGNS[tally.state]} | {counts} |"
    yield from _failures(document)
    yield from _grid(document)


def _failures(document: Document) -> Iterator[str]:
    plain = document.plain
    for result in document.results:
        if result.outcome in {Outcome.PASS, Outcome.NOT_CLAIMED}:
            continue
        yield ""
        yield f"## {result.outcome.value} {result.case}"
        yield ""
        if result.waiver:
            yield f"Waived as {result.waiver}."
            yield ""
        yield "```text"
        yield result.message.strip().replace("```", "'''")
        yield "```"
        yield ""
        yield f"    {replay_command(result.case, document.asked, plain['seed'])}"


def _grid(document: Document) -> Iterator[str]:
    grid = matrix(document.results)
    if not grid.features:
        return
    yield ""
    yield "## Worst error, as a fraction of the allowed"
    yield ""
    yield "| feature | " + " | ".join(f"{c.dtype} {c.size}" for c in grid.columns) + " |"
    yield "| --- |" + " ---: |" * len(grid.columns)
    for feature in grid.features:
        cells = [grid.cells.get((feature, column)) for column in grid.columns]
        shown = ["" if c is None else "·" if c.state == "none" else f"{_SIGNS[c.state]} {c.ratio:.2f}" for c in cells]
        yield f"| {feature} | " + " | ".join(shown) + " |"
