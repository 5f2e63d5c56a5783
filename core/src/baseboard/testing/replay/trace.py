"""Traces of production traffic: when each request came, how long it was, and what beginnings were shared.

Two public formats are read, plain or gzipped, and told apart by their first line:

* Mooncake (JSON lines): ``timestamp`` ms, ``input_length``, ``output_length``, ``hash_ids``, one id for each 512
  tokens of the prompt; equal ids at equal places mean equal text.
* Azure LLM inference (CSV): ``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``; nothing is shared.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from io import TextIOBase
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final, TextIO, cast

from baseboard.contract.errors import BaseboardError

#: Tokens that one Mooncake hash id stands for.
MOONCAKE_BLOCK: Final = 512
_AZURE_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_LARGEST_ID: Final = 2**31 - 1  #: hash ids are token ids here, and those have four bytes


class TraceError(BaseboardError):
    """A trace that cannot be read; the message names row, column and reason."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One recorded request."""

    seconds: float  #: since the first request
    num_prompt: int
    num_output: int
    shared: tuple[int, ...]  #: one id for each ``MOONCAKE_BLOCK`` tokens; empty: a text of its own
    number: int  #: its place in the trace, from 0

    def prompt(self) -> tuple[int, ...]:
        """Stand-in token ids: equal beginnings exactly where the trace says so."""
        if not self.shared:
            return tuple(repeat(-1 - self.number, self.num_prompt))  # no hash id is negative
        ids = chain.from_iterable(repeat(each, MOONCAKE_BLOCK) for each in self.shared)
        return tuple(ids)[: self.num_prompt]


@dataclass(frozen=True, slots=True)
class Trace:
    requests: tuple[TraceRequest, ...]  #: by time
    skipped: tuple[str, ...]  #: what was wrong with each row that was left out


def read_trace(path: Path, *, skip_bad: bool = False) -> Trace:
    """Read a trace. A bad row raises ``TraceError`` naming it, or with ``skip_bad`` is left out and reported."""
    try:
        with _open(path) as lines:
            rows = _rows(path, lines)
            good, bad = _sort_out(rows, skip_bad=skip_bad)
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    if not good:
        raise TraceError(f"{path}: no request in it")
    good.sort(key=lambda request: (request.seconds, request.number))
    first = good[0].seconds
    return Trace(
        tuple(TraceRequest(r.seconds - first, r.num_prompt, r.num_output, r.shared, r.number) for r in good), tuple(bad)
    )


def _open(path: Path) -> TextIO:
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return cast("TextIO", gzip.open(path, "rt", encoding="utf-8") if zipped else path.open(encoding="utf-8"))


def _rows(path: Path, lines: TextIO | TextIOBase) -> Iterator[TraceRequest | TraceError]:
    first = str(lines.readline())
    if first.lstrip().startswith("{"):
        return _mooncake(chain((first,), cast("Iterator[str]", lines)))
    columns = [column.strip() for column in first.strip().split(",")]
    missing = [column for column in _AZURE_COLUMNS if column not in columns]
    if missing:
        raise TraceError(
            f"{path}: neither JSON lines nor a CSV with {', '.join(_AZURE_COLUMNS)}: missing {', '.join(missing)}"
        )
    return _azure(columns, cast("Iterator[str]", lines))


def _sort_out(rows: Iterator[TraceRequest | TraceError], *, skip_bad: bool) -> tuple[list[TraceRequest], list[str]]:
    good: list[TraceRequest] = []
    bad: list[str] = []
    for row in rows:
        if isinstance(row, TraceRequest):
            good.append(row)
        elif skip_bad:
            bad.append(str(row))
        else:
            raise TraceError(f"{row}; --skip-bad leaves such rows out")
    return good, bad


def _mooncake(lines: Iterator[str]) -> Iterator[TraceRequest | TraceError]:
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            yield TraceError(f"row {number + 1}: no JSON: {error}")
            continue
        yield _checked(number, number + 1, row, ("timestamp", "input_length", "output_length"))


def _azure(columns: Sequence[str], lines: Iterator[str]) -> Iterator[TraceRequest | TraceError]:
    for number, cells in enumerate(csv.reader(lines)):
        row: dict[str, Any] = dict(zip(columns, cells, strict=False))
        # The first line names the columns.
        yield _read_cells(number + 2, row) or _checked(number, number + 2, row, _AZURE_COLUMNS)


def _read_cells(number: int, row: dict[str, Any]) -> TraceError | None:
    """Turn the text of row ``number`` into numbers, in place; or what is wrong with it."""
    for name in _AZURE_COLUMNS:
        text = row.get(name)
        if text is None:
            return TraceError(f"row {number}, column {name}: it has no such cell")
        stamp = name == "TIMESTAMP"
        try:
            # Seven decimals are one more than a datetime holds.
            row[name] = datetime.fromisoformat(text[:26]).timestamp() * 1000 if stamp else int(text)
        except ValueError:
            return TraceError(f"row {number}, column {name}: {text!r} is no {'time' if stamp else 'whole number'}")
    return None


def _checked(number: int, line: int, row: Any, names: Sequence[str]) -> TraceRequest | TraceError:
    if not isinstance(row, dict):
        return TraceError(f"row {line}: not an object")
    fields = cast("dict[str, Any]", row)
    for name, least in zip(names, (None, 1, 1), strict=True):
        value = fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return TraceError(f"row {line}, column {name}: {value!r} is no number")
        if least is not None and value < least:
            return TraceError(f"row {line}, column {name}: {value!r} must be at least {least}")
    ids: Any = fields.get("hash_ids", ())
    if not isinstance(ids, list | tuple) or not all(isinstance(each, int) for each in cast("list[Any]", ids)):
        return TraceError(f"row {line}, column hash_ids: a list of whole numbers is needed")
    if not all(0 <= each <= _LARGEST_ID for each in cast("list[int]", ids)):
        return TraceError(f"row {line}, column hash_ids: ids are 0 to {_LARGEST_ID}; number them anew")
    num_prompt = int(fields[names[1]])
    if ids and len(cast("list[int]", ids)) * MOONCAKE_BLOCK < num_prompt:
        return TraceError(
            f"row {line}, column hash_ids: {len(cast('list[int]', ids))} ids do not cover {num_prompt} tokens"
        )
    shared = tuple(cast("list[int]", ids))
    return TraceRequest(float(fields[names[0]]) / 1000, num_prompt, int(fields[names[2]]), shared, number)
