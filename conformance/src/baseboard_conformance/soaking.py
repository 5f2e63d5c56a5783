"""The numeric cases with many seeds: a right backend passes whatever the inputs are.

On the reference backend this measures the suite itself: a failure there is a tolerance that is too tight. The journal
is a file of one JSON line a seed; a run that was stopped goes on where it ended.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from baseboard_conformance.case import Case
from baseboard_conformance.exits import SuiteError, UsageError
from baseboard_conformance.outcome import Outcome, Result
from baseboard_conformance.outside import as_table
from baseboard_conformance.runner.station import Station

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Round:
    """All cases with one seed."""

    seed: int
    executed: int  #: cases that computed something
    not_claimed: int
    failures: tuple[str, ...]  #: ``OUTCOME case: message``
    worst_case: str
    worst_ratio: float  #: the largest error, as a fraction of the allowed
    seconds: float


@dataclass(frozen=True, slots=True)
class Totals:
    """All rounds together."""

    seeds: int
    results: int
    executed: int  #: of the results: the others are not claimed
    failures: tuple[str, ...]
    worst: Round | None

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> Totals:
        return cls(
            len(rounds),
            sum(each.executed + each.not_claimed for each in rounds),
            sum(each.executed for each in rounds),
            tuple(f"seed {each.seed}: {failure}" for each in rounds for failure in each.failures),
            max(rounds, key=lambda each: each.worst_ratio, default=None),
        )


def do_round(station: Station, cases: Sequence[Case], seed: int) -> Round:
    """Every case once, its inputs drawn from ``seed``."""
    began = time.perf_counter()
    results = [station.do_seeded(case, seed) for case in cases]
    executed = [result for result in results if result.outcome.executed]
    worst = max(executed, key=_ratio, default=None)
    return Round(
        seed=seed,
        executed=len(executed),
        not_claimed=len(results) - len(executed),
        failures=tuple(_told(result) for result in executed if result.outcome is not Outcome.PASS),
        worst_case="" if worst is None else worst.case,
        worst_ratio=0.0 if worst is None else _ratio(worst),
        seconds=round(time.perf_counter() - began, 3),
    )


def soak(
    station: Station, cases: Sequence[Case], seeds: Iterable[int], journal: Journal, told: Callable[[Round], None]
) -> Totals:
    """A round for each of ``seeds`` that ``journal`` does not have yet; the totals of all that it has then."""
    for seed in seeds:
        if seed not in journal.seeds:
            told(journal.add(do_round(station, cases, seed)))
    return Totals.of(journal.rounds)


class Journal:
    """The rounds that were done: kept in a file where there is one, so that a run can go on."""

    def __init__(self, path: Path | None, identity: dict[str, Any]) -> None:
        """``identity`` says of what these rounds are. Raises ``UsageError`` for a file of other rounds."""
        self._path: Final = path
        self.rounds: Final[list[Round]] = []
        if path is None:
            return
        head = {"kind": "baseboard-conformance-soak", "format": _FORMAT, **identity}
        if path.exists():
            self._read(path, head)
        else:
            self._append(head)

    @property
    def seeds(self) -> frozenset[int]:
        return frozenset(each.seed for each in self.rounds)

    def add(self, done: Round) -> Round:
        self._append(asdict(done))
        self.rounds.append(done)
        return done

    def _read(self, path: Path, head: dict[str, Any]) -> None:
        try:
            text = path.read_text(encoding="utf-8")
            whole, _, torn = text.rpartition("\n")
            lines = [as_table(json.loads(line)) for line in whole.split("\n")]
            found, rounds = lines[0], [_round(line) for line in lines[1:]]
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"{path} cannot be read as a journal of rounds: {error}") from error
        if found != head:
            raise UsageError(f"{path} is a journal of {found}; these rounds are {head}: name another file")
        if torn:
            # Somebody was stopped while writing: that round is done again.
            os.truncate(path, len((whole + "\n").encode()))
        self.rounds.extend(rounds)

    def _append(self, entry: dict[str, Any]) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(entry, sort_keys=True) + "\n")
        except OSError as error:
            raise SuiteError(f"{self._path} cannot be written: {error}") from error


def _round(line: dict[str, Any] | None) -> Round:
    fields: dict[str, Any] = dict(line or {})
    fields["failures"] = tuple(fields.get("failures", ()))
    return Round(**fields)


def _ratio(result: Result) -> float:
    return max(result.measures.get("ratio", 0.0), result.measures.get("row_ratio", 0.0))


def _told(result: Result) -> str:
    return f"{result.outcome.value} {result.case}: {result.message.partition(chr(10))[0]}"
