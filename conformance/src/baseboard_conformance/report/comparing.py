"""Two reports side by side, and many in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from baseboard_conformance.outcome import Outcome, Result
from baseboard_conformance.report.document import Document
from baseboard_conformance.report.matrix import tallies

#: An error that grew by less than this is noise.
_GROWN: Final = 1.5


@dataclass(frozen=True, slots=True)
class Difference:
    """What changed from an old report to a new one; one line a case."""

    worse: tuple[str, ...]
    better: tuple[str, ...]
    other: tuple[str, ...]  #: came, went, or changed without being better or worse


def compare(old: Document, new: Document) -> Difference:
    before = {result.case: result for result in old.results}
    after = {result.case: result for result in new.results}
    worse: list[str] = []
    better: list[str] = []
    other = [f"{case}: no longer run" for case in before if case not in after]
    for case, result in after.items():
        if case not in before:
            other.append(f"{case}: new, {result.outcome.value}")
            continue
        _sort(before[case], result, worse, better, other)
    return Difference(tuple(worse), tuple(better), tuple(other))


def _sort(old: Result, new: Result, worse: list[str], better: list[str], other: list[str]) -> None:
    line = f"{new.case}: {old.outcome.value} -> {new.outcome.value}"
    if old.outcome is not new.outcome:
        if _rank(new.outcome) != _rank(old.outcome):
            (worse if _rank(new.outcome) > _rank(old.outcome) else better).append(line)
        else:
            other.append(line)
        return
    ratios = [r.measures.get("ratio", 0.0) for r in (old, new)]
    if new.outcome is Outcome.PASS and ratios[1] > _GROWN * ratios[0] and ratios[1] > 0.5:
        other.append(f"{new.case}: error grew from {ratios[0]:.2f} to {ratios[1]:.2f} of the allowed")


def _rank(outcome: Outcome) -> int:
    """Larger is worse."""
    if outcome.bad or outcome is Outcome.ERROR:
        return 2
    return 0 if outcome is Outcome.PASS else 1


def overview(documents: Sequence[Document]) -> str:
    """Groups by backend, as a Markdown table."""
    signs = {"good": "✅", "waived": "🟡", "bad": "❌", "none": "·"}
    columns = [{tally.group: tally for tally in tallies(document.results)} for document in documents]
    groups = sorted({group for column in columns for group in column})
    names = [f"{d.plain['backend']['name']} {d.plain['backend']['version']}" for d in documents]
    lines = ["| group | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
    lines.append(
        "| **verdict** | "
        + " | ".join(f"{d.plain['verdict']['word']} ({d.plain['profile']})" for d in documents)
        + " |"
    )
    for group in groups:
        cells: list[str] = []
        for column in columns:
            tally = column.get(group)
            passed = 0 if tally is None else tally.counts.get(Outcome.PASS, 0)
            cells.append("" if tally is None else f"{signs[tally.state]} {passed}/{sum(tally.counts.values())}")
        lines.append(f"| {group} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
