"""Kernels compiled for real, in processes without the interpreter. ``make cuda-compile`` compiles all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from baseboard_cuda.tiles import FITTED_FOR


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment)


KERNELS = {
    *("paged_attention", "join_splits", "write_kv", "copy_blocks", "zero_blocks", "rms_norm", "add_rms_norm"),
    *("silu_and_mul", "rotary_embedding", "sample"),
}
TABLE = Path(__file__).parents[4] / "docs" / "cuda-kernels.md"
ARCHITECTURES = (75, 90, 100)  # without matrix instructions, and with those of Hopper and of Blackwell
# Everything with the compilers that the tiles were fitted with: another one needs a few registers more or less.
FITTED = version("triton") in FITTED_FOR
PART = "" if FITTED else " float16 128"


def compiled(tmp_path, *arguments: str) -> dict[tuple[str, int], str]:
    """The table's cells by kernel and architecture; nothing may be wrong."""
    table = tmp_path / "table.md"
    done = run("-m", "baseboard_cuda.check.compile", *arguments, "--table", str(table), "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    head, _, *rows = [line.split("|")[1:-1] for line in table.read_text().splitlines() if line.startswith("|")]
    numbers = [int(cell.strip().removeprefix("sm_")) for cell in head[1:]]
    return {
        (row[0].strip(), number): cell.strip() for row in rows for number, cell in zip(numbers, row[1:], strict=True)
    }


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_kernels_compile_and_fit(tmp_path, capability) -> None:
    """All kernels in all dtypes; attention with all features at one head size. ``make cuda-compile`` does the rest."""
    which = ("--head-size", "128", "--features", "everything", "--only", PART)
    found = compiled(tmp_path, "--capability", str(capability), *which)
    names = {label.split()[0] for label, _ in found}
    assert names >= {"paged_attention", "join_splits", "write_kv"}
    if FITTED:
        assert names == KERNELS
        dtypes = {"float32", "float16", "bfloat16"} if capability >= 80 else {"float32", "float16"}
        for kernel in KERNELS - {"copy_blocks", "zero_blocks"}:
            words = {word for label, _ in found for word in label.split() if label.startswith(f"{kernel} ")}
            assert words >= dtypes, kernel
    for (label, _), cell in found.items():
        registers, warps = map(int, cell.split()[0].split("x"))
        assert 0 < registers <= 255
        assert warps in {1, 2, 4, 8, 16, 32}
        assert registers * warps * 32 <= 65536, f"{label}: a processor has no more registers"
        assert "spills" not in cell
        multiplies = "paged_attention" in label and "float32" not in label and capability >= 80
        assert (" m" in cell) == multiplies, f"{label}: {cell}"


def test_the_committed_table_has_every_launch_of_the_shipped_tiles() -> None:
    """It is written by ``make cuda-compile``: whoever adds a kernel or a tile runs that."""
    code = """
import json, sys
from baseboard_cuda.check.variants import ARCHITECTURES, Selection, variants
json.dump({number: [v.label for v in variants(number, Selection())] for number in ARCHITECTURES}, sys.stdout)
"""
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    head, _, *rows = [line.split("|")[1:-1] for line in TABLE.read_text().splitlines() if line.startswith("|")]
    numbers = [int(cell.strip().removeprefix("sm_")) for cell in head[1:]]
    found = json.loads(done.stdout)
    launches = {(label, int(number)) for number, labels in found.items() for label in labels}
    assert numbers == [75, 80, 86, 89, 90, 100, 103, 120]
    assert {label.split()[0] for label, _ in launches} == KERNELS
    written = {
        (row[0].strip(), number)
        for row in rows
        for number, cell in zip(numbers, row[1:], strict=True)
        if cell.strip() != "-"
    }
    assert written == launches
    assert "**" not in TABLE.read_text()


def test_the_committed_table_says_what_the_tiles_are_fitted_for() -> None:
    """And that it was written with one of these."""
    text = TABLE.read_text()
    assert f"The tiles are fitted for Triton {' and '.join(FITTED_FOR)}," in " ".join(text.split())
    assert any(f"`make cuda-compile` with Triton {triton}." in text for triton in FITTED_FOR)


def test_two_processes_may_share_the_cache(tmp_path) -> None:
    """Both compile the same at once into one empty cache."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    command = [sys.executable, "-m", "baseboard_cuda.check.compile", "--capability", "90", "--only", "_blocks"]
    both = [subprocess.Popen([*command, "--workers", "1"], env=environment, stdout=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate()[0].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert said == ["2 kernels compiled, 0 of them wrong\n"] * 2


def test_a_compiler_that_does_not_end_is_given_up() -> None:
    done = run("-m", "baseboard_cuda.check.compile", "--capability", "90", "--only", "_blocks", "--patience", "0.01")
    assert done.returncode == 1
    assert "no kernel was finished" in done.stdout


def test_nothing_to_compile_is_a_failure() -> None:
    done = run("-m", "baseboard_cuda.check.compile", "--capability", "90", "--only", "no such kernel")
    assert done.returncode == 1


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


@pytest.mark.parametrize(("rows", "keys", "code"), [(16, 16, 0), (128, 128, 3)])
def test_a_python_says_of_a_tile_whether_it_fits(rows, keys, code) -> None:
    """As the one that fits tiles for several Tritons asks it."""
    key = {"phase": "decode", "dtype": "float16", "storage": "native", "head_size": 64}
    tile = {"rows": rows, "keys": keys, "warps": 4, "stages": 4}
    done = run("-m", "baseboard_cuda.check.fits", "86", json.dumps(key), json.dumps(tile))
    assert done.returncode == code, done.stderr
