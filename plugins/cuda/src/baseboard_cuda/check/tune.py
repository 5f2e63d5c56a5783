"""Measures which tiles are fastest on the GPU that is here, and writes them to a file.

``python -m baseboard_cuda.check.tune FILE``. Nothing is ever tuned otherwise: a program that measured while it served
would be slow just when it is new, and would compute other roundings after each start.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from baseboard.kit.dtypes import torch_dtype
from baseboard_cuda.backend import CudaBackend
from baseboard_cuda.check.fit import as_json as tiles_as_json
from baseboard_cuda.check.fit import candidates, keys
from baseboard_cuda.check.fits import candidate_table, fits
from baseboard_cuda.check.gpu import EventClock
from baseboard_cuda.check.layer import Shape
from baseboard_cuda.check.speed import Clock, attention_seconds
from baseboard_cuda.chip import Chip
from baseboard_cuda.opening import open_gpu
from baseboard_cuda.options import Options
from baseboard_cuda.tiles import Tile, TileKey

_SHAPES: Final = {"decode": Shape(32, 4096, 1), "prefill": Shape(4, 2048, 2048)}


def tune(chip: Chip, key: TileKey, shape: Shape, tiles: Sequence[Tile], clock: Clock) -> Tile:
    """The fastest of ``tiles`` for layers that have ``key``, at ``shape`` with the key's head size."""
    sized = replace(shape, head_size=key.head_size)

    def seconds(tile: Tile) -> float:
        backend = CudaBackend(replace(chip, tiles=candidate_table(key, tile)), Options())
        return attention_seconds(backend, sized, torch_dtype(key.dtype), clock, key.kv_dtype)

    return min(tiles, key=seconds)


def main(
    arguments: Sequence[str] | None = None,
    open_chip: Callable[[int, Options], Chip] = open_gpu,
    clock: Clock | None = None,
) -> int:
    """``open_chip`` and ``clock`` are a GPU's own; tests give others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--capability", type=int, required=True, help="of the device, such as 90")
    options = parser.parse_args(arguments)
    chip = open_chip(options.device, Options())
    chosen: dict[TileKey, Tile] = {}
    for key in keys(chip.dtypes):
        fitting = [tile for tile in candidates(options.capability, key) if fits(options.capability, key, tile)]
        chosen[key] = tune(chip, key, _SHAPES[key.phase], fitting, clock or EventClock())
        sys.stdout.write(f"{key}: {chosen[key]}\n")
        sys.stdout.flush()
    options.file.write_text(tiles_as_json(chosen), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
