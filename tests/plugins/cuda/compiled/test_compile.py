"""Kernels compiled for real, in processes without the interpreter. ``make cuda-compile`` compiles all of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    ("only", "capabilities"),
    [
        ("paged_attention decode float16 64 plain", (75, 80, 90, 120)),
        ("paged_attention prefill bfloat16 fp8_e4m3 128 plain", (80, 100)),
        ("write_kv float16 fp8_e4m3 64 plain", (75, 103)),
        ("_blocks", (75, 89, 90)),
    ],
)
def test_kernels_compile_and_fit(tmp_path, only, capabilities) -> None:
    table = tmp_path / "table.md"
    numbers = [word for number in capabilities for word in ("--capability", str(number))]
    done = run("-m", "baseboard_cuda.check.compile", *numbers, "--only", only, "--table", str(table), "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split("|")[1:-1] for line in table.read_text().splitlines()[2:]]
    assert {int(row[0]) for row in rows} == set(capabilities)
    for capability, label, _, registers, spilled, _, matrix in rows:
        assert only in label
        assert 0 < int(registers) <= 255
        assert int(spilled) == 0
        assert (int(matrix) > 0) == ("paged_attention" in label and int(capability) >= 80)


def test_nothing_to_compile_is_a_failure() -> None:
    assert run("-m", "baseboard_cuda.check.compile", "--capability", "90", "--only", "no such kernel").returncode == 1


def test_a_tile_too_large_is_found_out() -> None:
    code = """
from baseboard_cuda.check.compile import compile_variant
from baseboard_cuda.check.variants import Kind, attention_variants
from baseboard_cuda.tiles import Tile, TileKey, TileTable
from typing import get_args
tiles = {TileKey(p, "float16", "native", 256): Tile(128, 64, 4, 2) for p in ("decode", "prefill")}
kind = Kind("float16", "auto", 256, "plain")
found = attention_variants(86, TileTable("large", tiles, 2, 512), kind)
(prefill,) = [variant for variant in found if "paged_attention prefill" in variant.label]
print(compile_variant(prefill).problems)
"""
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    assert "spills" in done.stdout
    assert "of shared memory, there are 101376" in done.stdout
