"""The table of all features in docs/scheduling.md names files and tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| `([^`]+)` \| `([^`]+)`: `([^`]+)` \|$", re.MULTILINE)


def test_every_row_names_a_file_and_a_test_that_exist() -> None:
    text = (ROOT / "docs/scheduling.md").read_text(encoding="utf-8")
    rows = ROW.findall(text.partition("## All features")[2])
    assert [int(number) for number, *_ in rows] == list(range(1, 55))
    for number, _, _, file, tests, name in rows:
        assert (ROOT / "core/src/baseboard" / file).is_file(), f"row {number}: there is no {file}"
        source = (ROOT / "tests/core" / tests).read_text(encoding="utf-8")
        assert f"\ndef {name}(" in source, f"row {number}: {tests} has no {name}"
