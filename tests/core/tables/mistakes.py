"""The planted mistakes as the page docs/planted-mistakes.md; ``python mistakes.py`` writes it anew."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]
DOCUMENT = TESTS.parent / "docs" / "planted-mistakes.md"


def page() -> str:
    from core.scheduler.mutants import MUTANTS

    lines = [
        "# Planted mistakes",
        "",
        f"{len(MUTANTS)} mistakes in scheduler and KV manager: each is a change of the sources, and each is caught.",
        "`make mutants` plants them one at a time; some are planted in every test run. They are in",
        "`tests/core/scheduler/mutants.py`; this page is written by `tests/core/tables/mistakes.py`.",
        "",
        "| Where | What is wrong | Caught by |",
        "| --- | --- | --- |",
    ]
    for mutant in MUTANTS:
        where = mutant.module.removeprefix("baseboard.").replace(".", "/")
        lines.append(f"| {where} | {mutant.reason} | {mutant.found_by or 'random episodes'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    DOCUMENT.write_text(page(), encoding="utf-8")
