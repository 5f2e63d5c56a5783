"""The scenarios that scheduler and KV manager have to stand, and which tests stand for them.

A test says in its docstring which scenario it is: "Scenario 28.", "Scenarios 15 d and 41:". ``python scenarios.py``
writes the table of docs/scheduling.md anew; test_tables.py compares the two.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[2]
DOCUMENT = TESTS.parent / "docs" / "scheduling.md"
BEGIN, END = "<!-- scenarios: written by tests/core/tables/scenarios.py -->\n", "<!-- end of scenarios -->\n"

SCENARIOS = {
    1: "a long prompt is started, runs out of blocks, starts again",
    2: "a prompt that fits exactly loses the race to a decoder",
    3: "a request that can never fit",
    4: "the only request fills the pool",
    5: "the victim was already placed in this step",
    6: "a victim ahead of the cursor makes the loop skip the next",
    7: "head-of-line blocking against starvation of the big one",
    8: "a preempted request loses its turn",
    9: "all places are taken by the less important",
    10: "running requests left out of the count of places",
    11: "adapter limit: blocked head, starvation, wrong count",
    13: "the first token after pause, clear, resume",
    14: "one forward too many under overlap",
    15: "edges of max_model_len",
    16: "swapped work overtaken by new prompts",
    17: "no room in the host for a group",
    19: "parked requests are looked at while places are full",
    20: "a stop token as the very first token",
    21: "the same id twice",
    23: "abort in every state",
    24: "a request finishes and is picked as victim",
    25: "grammar state against preemption and rollback",
    26: "end-of-sequence escapes the grammar",
    27: "encoder cache held by a waiting request",
    28: "a chunk cut at an item's start, rounded down to zero",
    30: "cached but free blocks counted as used",
    31: "the budget filled on a hit that does not happen",
    32: "release measured in tokens, need in blocks",
    33: "state kept from a failed attempt",
    34: "the prompt is fully cached",
    35: "a resume plans before it looks at the cache",
    36: "resume at a block's edge",
    39: "a half-filled block is published",
    41: "rejected drafts in the index",
    42: "an index entry outlives its content",
    43: "a key that ignores what came before",
    44: "tenants see each other's cache",
    45: "the adapter is missing from the key",
    46: "placeholders hide different media",
    48: "one block twice in a table",
    49: "copy on write for several samples",
    51: "swap-in forgets the next token",
    54: "counters drift when blocks change tiers",
    55: "blocks of ended requests never come back",
    56: "windows free too much",
    57: "the cache is dropped, the index says hit",
    58: "a hit block evicted by the same allocation",
    88: "prompt log-probabilities with hits, chunks, preemption",
}  # fmt: skip


def tests_of() -> dict[int, list[str]]:
    """Scenario number to the tests that name it, as ``file::function``, in order."""
    found: dict[int, list[str]] = {number: [] for number in SCENARIOS}
    for path in sorted(TESTS.rglob("test_*.py")):
        for function, numbers in _named(path):
            for number in numbers & found.keys():
                found[number].append(f"{path.relative_to(TESTS).as_posix()}::{function}")
    return found


def _named(path: Path) -> Iterator[tuple[str, set[int]]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            text = ast.get_docstring(node) or ""
            mentions = re.findall(r"[Ss]cenarios? ((?:\d+[ a-z]*(?:, | and )?)+)", text)
            yield node.name, {int(number) for mention in mentions for number in re.findall(r"\d+", mention)}


def table() -> str:
    rows = ["| | What goes wrong | Tests |", "| --- | --- | --- |"]
    for number, tests in tests_of().items():
        files: dict[str, int] = {}
        for test in tests:
            file = test.partition("::")[0]
            files[file] = files.get(file, 0) + 1
        where = ", ".join(f"`{file}` ({count})" for file, count in files.items())
        rows.append(f"| {number} | {SCENARIOS[number]} | {where or 'none yet'} |")
    return "\n".join(rows) + "\n"


def shown() -> str:
    """The table that the docs show."""
    return DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip() + "\n"


def main() -> None:
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
