"""The grid of numeric cases as a table: feature by dtype and head size, the worst error ratio in each cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from baseboard_conformance.outcome import Outcome, Result


@dataclass(frozen=True, slots=True, order=True)
class Column:
    dtype: str
    size: str  #: head size, or ``preferred``

    @property
    def order(self) -> tuple[int, int]:
        dtypes = ("float32", "bfloat16", "float16")
        number = int(self.size.removeprefix("d")) if self.size.startswith("d") else 0
        return (dtypes.index(self.dtype) if self.dtype in dtypes else len(dtypes), number)


@dataclass(slots=True)
class Cell:
    """All layouts of one feature, dtype and head size."""

    ratio: float = 0.0
    num_cases: int = 0
    outcomes: set[Outcome] = field(default_factory=set[Outcome])

    @property
    def state(self) -> str:
        """``bad``, ``waived``, ``good`` or ``none``: nothing but what is not declared."""
        if any(outcome.bad or outcome in {Outcome.ERROR, Outcome.XPASS} for outcome in self.outcomes):
            return "bad"
        if Outcome.WAIVED in self.outcomes:
            return "waived"
        return "good" if Outcome.PASS in self.outcomes else "none"


@dataclass(frozen=True, slots=True)
class Matrix:
    features: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[str, Column], Cell]


def matrix(results: Iterable[Result]) -> Matrix:
    cells: dict[tuple[str, Column], Cell] = {}
    for result in results:
        group, *rest = result.case.split("/")
        if not group.startswith("attention.") or len(rest) != 3:
            continue
        cell = cells.setdefault((group.removeprefix("attention."), Column(rest[1], rest[2])), Cell())
        cell.num_cases += 1
        cell.outcomes.add(result.outcome)
        cell.ratio = max(cell.ratio, result.measures.get("ratio", 0.0), result.measures.get("row_ratio", 0.0))
    features = tuple(sorted({feature for feature, _ in cells}, key=lambda feature: (feature != "plain", feature)))
    columns = tuple(sorted({column for _, column in cells}, key=lambda column: column.order))
    return Matrix(features, columns, cells)


@dataclass(slots=True)
class Tally:
    """Outcomes of one group of cases."""

    group: str
    counts: dict[Outcome, int] = field(default_factory=dict[Outcome, int])
    seconds: float = 0.0

    @property
    def state(self) -> str:
        if any(outcome.bad or outcome in {Outcome.ERROR, Outcome.XPASS} for outcome in self.counts):
            return "bad"
        if Outcome.WAIVED in self.counts:
            return "waived"
        return "good" if Outcome.PASS in self.counts else "none"


def tallies(results: Iterable[Result]) -> list[Tally]:
    """One a group: what comes before the first dot or slash."""
    found: dict[str, Tally] = {}
    for result in results:
        group = result.case.partition("/")[0].partition(".")[0]
        tally = found.setdefault(group, Tally(group))
        tally.counts[result.outcome] = tally.counts.get(result.outcome, 0) + 1
        tally.seconds += result.duration
    return sorted(found.values(), key=lambda tally: tally.group)
