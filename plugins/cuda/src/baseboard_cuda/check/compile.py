"""Compiles every kernel ahead of time for every architecture and judges what comes out: needs no GPU.

``python -m baseboard_cuda.check.compile [--capability 90]... [--table FILE] [--only TEXT]``
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource

from baseboard_cuda.check.variants import ARCHITECTURES, Variant, unique, variants

#: Bytes of shared memory that one program may use.
SHARED_LIMITS: Final = {
    75: 65536,
    80: 166912,
    86: 101376,
    89: 101376,
    90: 232448,
    100: 232448,
    103: 232448,
    120: 101376,
}
_MATRIX: Final = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b")
_USAGE: Final = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True, slots=True)
class Compiled:
    """What one kernel takes on one architecture."""

    capability: int
    label: str
    warps: int
    registers: int  #: of a thread
    spilled: int  #: bytes of a thread's stack: registers that did not fit
    shared: int  #: bytes of a program
    matrix_instructions: int
    problems: tuple[str, ...]


def compile_variant(variant: Variant) -> Compiled:
    """Compile to a cubin by Triton's own ptxas and read its needs."""
    launch = variant.launch
    names: list[str] = launch.kernel.arg_names
    source = ASTSource(
        launch.kernel,
        launch.signature,
        launch.constants,
        {(names.index(name),): [["tt.divisibility", 16]] for name in launch.aligned},
    )
    made = triton.compile(source, target=GPUTarget("cuda", variant.capability, 32), options=launch.options)
    registers, spilled = read_usage(made.asm["cubin"])
    matrix = len(_MATRIX.findall(made.asm["ptx"]))
    shared = made.metadata.shared
    return Compiled(
        variant.capability,
        variant.label,
        made.metadata.num_warps,
        registers,
        spilled,
        shared,
        matrix,
        tuple(_problems(variant, spilled, shared, matrix)),
    )


def _problems(variant: Variant, spilled: int, shared: int, matrix: int) -> Iterator[str]:
    if spilled:
        yield f"spills {spilled} bytes"
    limit = SHARED_LIMITS[variant.capability]
    if shared > limit:
        yield f"takes {shared} bytes of shared memory, there are {limit}"
    if variant.matrix and not matrix:
        yield "has no matrix instructions"


def read_usage(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread and bytes of its stack, as ``cuobjdump`` tells them."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = _USAGE.search(text)
    if found is None:
        raise ValueError(f"cuobjdump says nothing of registers: {text!r}")
    return int(found[1]), int(found[2])


def _compile_numbered(capability: int, only: str, number: int) -> Compiled:
    return compile_variant(chosen(capability, only)[number])


def chosen(capability: int, only: str) -> list[Variant]:
    """The variants of one architecture whose label contains ``only``."""
    return [variant for variant in unique(variants(capability)) if only in variant.label]


def compile_all(capabilities: Iterable[int], only: str, workers: int) -> Iterator[Compiled]:
    """Kernels cannot be sent to another process: each worker finds its own by number."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for capability in capabilities:
            job: Callable[[int], Compiled] = partial(_compile_numbered, capability, only)
            yield from pool.map(job, range(len(chosen(capability, only))), chunksize=8)


def table(results: Sequence[Compiled]) -> str:
    """Markdown, a row for each kernel and architecture."""
    head = "| sm | kernel | warps | registers | spilled | shared | matrix instructions |\n"
    rule = "| --- | --- | ---: | ---: | ---: | ---: | ---: |\n"
    return (
        head
        + rule
        + "".join(
            f"| {r.capability} | {r.label} | {r.warps} | {r.registers} | {r.spilled} | {r.shared} "
            f"| {r.matrix_instructions} |\n"
            for r in results
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what is wrong, writes the table; 1 when anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--capability", type=int, action="append", choices=ARCHITECTURES, help="such as 90; all if not given"
    )
    parser.add_argument("--only", default="", help="kernels whose label contains this")
    parser.add_argument("--table", type=Path, help="write the table to this file")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    results: list[Compiled] = []
    for result in compile_all(options.capability or ARCHITECTURES, options.only, options.workers):
        results.append(result)
        if result.problems:
            sys.stdout.write(f"sm_{result.capability} {result.label}: {'; '.join(result.problems)}\n")
            sys.stdout.flush()
    if options.table is not None:
        options.table.parent.mkdir(parents=True, exist_ok=True)
        options.table.write_text(table(results), encoding="utf-8")
    wrong = sum(bool(result.problems) for result in results)
    sys.stdout.write(f"{len(results)} kernels compiled, {wrong} of them wrong\n")
    return int(wrong > 0 or not results)


if __name__ == "__main__":
    raise SystemExit(main())
