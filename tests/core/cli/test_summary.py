from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from baseboard.cli.summary import Timing, memory_as_dict, print_memory, print_summary
from baseboard.runtime.sizing import MemoryReport

STATS = {
    "num_prompt_tokens": 1500,
    "num_generated_tokens": 60,
    "prefix_hits": 375,
    "prefix_queries": 1500,
    "num_preemptions": 2,
}
MIB = 1024**2
MEMORY = MemoryReport(
    total=1000 * MIB,
    budget=900 * MIB,
    weights=256 * MIB,
    other_held=44 * MIB,
    activations=100 * MIB,
    margin=20 * MIB,
    kv_cache=480 * MIB,
    num_blocks=1535,
    block_nbytes=327_680,
)
BUILT: Any = SimpleNamespace(
    backend=SimpleNamespace(name="chip", device=SimpleNamespace(name="Chip [9]"), why="it is the fastest"),
    memory=MEMORY,
    block_size=16,
)


def test_the_summary_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(BUILT, STATS, Timing(generating=4.0, first_token=0.25))
    assert capsys.readouterr().err == (
        "chip on Chip [9] (it is the fastest): 1,500 prompt tokens, 60 generated, 15.0 tokens/s, "
        "first token after 0.25 s, prefix cache 375 (25%), 2 preemptions\n"
    )


def test_nothing_done_is_nothing_divided_by_zero(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = dict.fromkeys(STATS, 0)
    print_summary(BUILT, nothing, Timing(generating=0.0, first_token=None))
    assert capsys.readouterr().err.endswith(
        "0 prompt tokens, 0 generated, 0.0 tokens/s, prefix cache 0 (0%), 0 preemptions\n"
    )


def test_the_memory_report_is_itemised_and_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    print_memory(BUILT)
    rows = [line.rsplit(maxsplit=2) for line in capsys.readouterr().err.splitlines()]
    amounts = {row[0].strip(): float(row[1].replace(",", "")) for row in rows[:-1]}
    assert amounts.pop("budget") == 900.0
    assert sum(amounts.values()) == 900.0
    assert amounts["KV cache"] == 480.0
    items = memory_as_dict(BUILT)
    assert (items["budget"], items["kv_cache"], items["num_kv_blocks"]) == (900 * MIB, 480 * MIB, 1535)
