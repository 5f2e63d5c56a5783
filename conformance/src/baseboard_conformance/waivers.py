"""Known failures of a backend, each with a reason, an issue and a day when it ends."""

from __future__ import annotations

import datetime
import fnmatch
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from baseboard_conformance.exits import StaleWaiverError, UsageError
from baseboard_conformance.outcome import Outcome, Result
from baseboard_conformance.outside import as_list, as_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KINDS: Final = ("xfail", "platform", "tolerance")
_FIELDS: Final = frozenset({"case", "kind", "reason", "issue", "expires", "max_ratio"})


@dataclass(frozen=True, slots=True)
class Waiver:
    """One known failure."""

    case: str  #: id or pattern of ids
    kind: str  #: ``xfail``: fails, and passing is news; ``platform``: may fail; ``tolerance``: fails within max_ratio
    reason: str
    issue: str
    expires: datetime.date
    max_ratio: float | None = None

    def matches(self, case: str) -> bool:
        return fnmatch.fnmatchcase(case, self.case)

    def excuses(self, result: Result) -> bool:
        if not result.outcome.bad:
            return False
        if self.max_ratio is None:
            return True
        worst = max(result.measures.get("ratio", float("inf")), result.measures.get("row_ratio", float("inf")))
        return worst <= self.max_ratio


def read_waivers(path: Path) -> tuple[Waiver, ...]:
    """Raises ``UsageError`` naming the entry and what is wrong with it."""
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"waivers {path} cannot be read: {error}") from error
    entries = as_list(plain.get("waiver"))
    if set(plain) - {"waiver"} or entries is None:
        raise UsageError(f"waivers {path}: write one [[waiver]] table for each; found {sorted(plain)}")
    return tuple(_waiver(number, entry, path) for number, entry in enumerate(entries, 1))


def _waiver(number: int, entry: object, path: Path) -> Waiver:
    where = f"waivers {path}, entry {number}"
    table = as_table(entry)
    if table is None:
        raise UsageError(f"{where}: write it as a table, [[waiver]]")
    unknown = sorted(set(table) - _FIELDS)
    if unknown:
        raise UsageError(f"{where}: unknown fields {', '.join(unknown)}; known are {', '.join(sorted(_FIELDS))}")
    for name in ("case", "kind", "reason", "issue"):
        if not isinstance(table.get(name), str) or not table[name].strip():
            raise UsageError(f"{where}: {name} must be a text that is not empty")
    expires = table.get("expires")
    if not isinstance(expires, datetime.date) or isinstance(expires, datetime.datetime):
        raise UsageError(f"{where}: expires must be a day, such as 2027-01-31, without quotes; it is {expires!r}")
    if table["kind"] not in _KINDS:
        raise UsageError(f"{where}: kind is {table['kind']!r}; known are {', '.join(_KINDS)}")
    ratio = table.get("max_ratio")
    if (table["kind"] == "tolerance") != (ratio is not None):
        raise UsageError(f"{where}: max_ratio belongs to kind tolerance, and only there")
    if ratio is not None and (isinstance(ratio, bool) or not isinstance(ratio, int | float) or ratio <= 1):
        raise UsageError(f"{where}: max_ratio must be a number above 1, it is {ratio!r}")
    return Waiver(**table)


def check_waivers(waivers: Sequence[Waiver], known: Iterable[str], today: datetime.date) -> None:
    """Raises ``StaleWaiverError`` for those whose time is over, ``UsageError`` for those that match no case."""
    ids = list(known)
    for waiver in waivers:
        if waiver.expires < today:
            raise StaleWaiverError(
                f"the waiver for {waiver.case} expired on {waiver.expires}: fix it or renew it ({waiver.issue})"
            )
        if not any(waiver.matches(case) for case in ids):
            raise UsageError(f"the waiver for {waiver.case} matches no case: see `baseboard-conformance list`")


def apply(waivers: Sequence[Waiver], result: Result) -> Result:
    """The result as the waivers see it."""
    for waiver in waivers:
        if not waiver.matches(result.case):
            continue
        if waiver.excuses(result):
            return replace(result, outcome=Outcome.WAIVED, waiver=f"{waiver.kind}: {waiver.reason} ({waiver.issue})")
        if result.outcome is Outcome.PASS and waiver.kind != "platform":
            words = f"it passes, and a waiver says that it fails: remove it ({waiver.issue})"
            return replace(result, outcome=Outcome.XPASS, message=words, waiver=f"{waiver.kind}: {waiver.reason}")
    return result
