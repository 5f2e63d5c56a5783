"""Compiles every kernel ahead of time for every architecture and judges what comes out: needs no GPU.

``python -m baseboard_cuda.check.compile [--capability 90]... [--table FILE] [--only TEXT]``

What was compiled before comes out of Triton's cache (``TRITON_CACHE_DIR``), which processes may share.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from multiprocessing import TimeoutError as NothingDone
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource

from baseboard_cuda.check.table import Compiled, table
from baseboard_cuda.check.variants import ARCHITECTURES, FEATURES, HEAD_SIZES, Selection, Variant, variants

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


def _compile_numbered(capability: int, selection: Selection, number: int) -> Compiled:
    return compile_variant(variants(capability, selection)[number])


def compile_all(capabilities: Iterable[int], selection: Selection, workers: int, patience: float) -> Iterator[Compiled]:
    """Kernels cannot be sent to another process: each worker finds its own by number.

    Raises ``multiprocessing.TimeoutError`` when for ``patience`` seconds nothing was finished; the workers are ended.
    """
    with get_context("spawn").Pool(workers) as pool:
        for capability in capabilities:
            job: Callable[[int], Compiled] = partial(_compile_numbered, capability, selection)
            results = pool.imap(job, range(len(variants(capability, selection))))
            while True:
                try:
                    yield results.next(patience)
                except StopIteration:
                    break


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what is wrong, writes the table; 1 when anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--capability", type=int, action="append", choices=ARCHITECTURES, help="such as 90; all if not given"
    )
    parser.add_argument("--only", default="", help="kernels whose label contains this")
    parser.add_argument("--head-size", type=int, action="append", help="of attention; all if not given")
    parser.add_argument("--features", action="append", choices=FEATURES, help="of attention; all if not given")
    parser.add_argument("--table", type=Path, help="write the table to this file")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for one kernel")
    options = parser.parse_args(arguments)
    selection = Selection(options.only, tuple(options.head_size or HEAD_SIZES), tuple(options.features or FEATURES))
    results: list[Compiled] = []
    try:
        for result in compile_all(options.capability or ARCHITECTURES, selection, options.workers, options.patience):
            results.append(result)
            if result.problems:
                sys.stdout.write(f"sm_{result.capability} {result.label}: {'; '.join(result.problems)}\n")
                sys.stdout.flush()
    except NothingDone:
        sys.stdout.write(f"for {options.patience:g} seconds no kernel was finished: given up after {len(results)}\n")
        return 1
    if options.table is not None:
        write_whole(options.table, table(results))
    wrong = sum(bool(result.problems) for result in results)
    sys.stdout.write(f"{len(results)} kernels compiled, {wrong} of them wrong\n")
    return int(wrong > 0 or not results)


def write_whole(file: Path, text: str) -> None:
    """Who reads the file meanwhile sees the old one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, encoding="utf-8", delete=False) as new:
        new.write(text)
    Path(new.name).chmod(0o644)
    Path(new.name).replace(file)


if __name__ == "__main__":
    raise SystemExit(main())
