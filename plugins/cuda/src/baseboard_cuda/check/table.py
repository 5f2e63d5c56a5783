"""What the kernels take, as a page: a row for each kernel, a column for each architecture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import triton

from baseboard_cuda.tiles import FITTED_FOR

_HEAD: Final = """\
# What the kernels take

Written by `make cuda-compile` with Triton {version}. Each cell has the registers of a thread x the warps of a program,
then the KiB of shared memory and, after `m`, how many matrix instructions there are; `-` is a dtype that the
architecture does not have. A kernel that spilled registers would say so, and fail the check. The tiles are fitted for
Triton {fitted}, with each of which every kernel fits; with another, numbers differ a little.

"""


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


def table(results: Sequence[Compiled]) -> str:
    """Markdown."""
    architectures = list(dict.fromkeys(result.capability for result in results))
    cells = {(result.label, result.capability): _cell(result) for result in results}
    lines = [
        f"| kernel | {' | '.join(f'sm_{number}' for number in architectures)} |",
        f"| --- |{' --- |' * len(architectures)}",
    ]
    for label in dict.fromkeys(result.label for result in results):
        row = " | ".join(cells.get((label, number), "-") for number in architectures)
        lines.append(f"| {label} | {row} |")
    return _HEAD.format(version=triton.__version__, fitted=" and ".join(FITTED_FOR)) + "\n".join(lines) + "\n"


def _cell(result: Compiled) -> str:
    parts = [f"{result.registers}x{result.warps}"]
    if result.shared:
        parts.append(f"{result.shared / 1024:.4g}K")
    if result.matrix_instructions:
        parts.append(f"m{result.matrix_instructions}")
    if result.spilled:
        parts.append(f"**spills {result.spilled}**")
    return " ".join(parts)
