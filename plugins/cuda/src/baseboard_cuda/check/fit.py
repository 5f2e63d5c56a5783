"""Writes a file of tiles for a family of GPUs: of the likely ones, the first that fits into registers and memory.

``python -m baseboard_cuda.check.fit 90 FILE [--also PYTHON]...`` needs no GPU, and measures nothing: where a GPU can
be had, ``python -m baseboard_cuda.check.tune`` finds the fastest of the same candidates. What is in use stays where it
fits. A tile has to fit with the Triton of this Python and with that of each other ``PYTHON``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Final, get_args

from baseboard.contract import DType
from baseboard_cuda.check.fits import LEAST_SPLIT_KEYS, PROGRAMS_PER_PROCESSOR, Elsewhere, Judge, fits
from baseboard_cuda.check.variants import ARCHITECTURES, dtypes
from baseboard_cuda.tiles import Phase, Storage, Tile, TileKey, load_tiles, table_name

SIZES: Final = (64, 128, 256, 512)

#: Rows, keys, warps, stages; most promising first. Without matrix instructions all numbers are held in registers.
_WITH_MATRIX: Final[dict[tuple[Phase, int], tuple[tuple[int, int, int, int], ...]]] = {
    ("prefill", 64): (
        (128, 64, 4, 3),
        (128, 64, 8, 3),
        (128, 64, 8, 2),
        (64, 64, 4, 2),
        (64, 32, 4, 2),
        (32, 32, 4, 2),
    ),
    ("prefill", 128): (
        (128, 64, 8, 3),
        (128, 64, 8, 2),
        (64, 64, 4, 2),
        (128, 32, 8, 2),
        (64, 32, 4, 2),
        (64, 64, 8, 2),
        (64, 32, 8, 2),
        (32, 32, 4, 2),
    ),
    ("prefill", 256): ((128, 32, 8, 2), (64, 32, 8, 2), (32, 32, 8, 2), (32, 16, 8, 2), (16, 16, 8, 1)),
    ("prefill", 512): ((64, 32, 8, 2), (32, 32, 8, 2), (32, 16, 8, 2), (16, 16, 8, 2), (16, 16, 8, 1)),
    ("decode", 64): ((16, 128, 4, 3), (16, 64, 4, 3), (16, 32, 4, 3), (16, 32, 4, 2)),
    ("decode", 128): ((16, 64, 4, 3), (16, 32, 4, 3), (16, 32, 4, 2), (16, 16, 4, 2)),
    ("decode", 256): ((16, 32, 4, 3), (16, 32, 4, 2), (16, 16, 4, 2), (16, 16, 8, 1)),
    ("decode", 512): ((16, 32, 8, 2), (16, 16, 8, 2), (16, 16, 4, 1), (16, 16, 8, 1)),
}
_SMALL: Final = (
    (16, 32, 8, 1),
    (16, 32, 4, 1),
    (16, 16, 8, 2),
    (16, 16, 8, 1),
    (16, 16, 4, 2),
    (16, 16, 4, 1),
    (16, 16, 2, 1),
    (16, 16, 16, 1),
    (16, 32, 16, 1),
    (8, 16, 8, 1),
    (8, 16, 4, 1),
)
_WITHOUT_MATRIX: Final[dict[tuple[Phase, int], tuple[tuple[int, int, int, int], ...]]] = {
    ("prefill", 64): ((32, 32, 8, 2), (32, 32, 8, 1), (16, 32, 4, 2), *_SMALL),
    ("prefill", 128): ((32, 32, 8, 2), (32, 32, 8, 1), (16, 32, 8, 2), *_SMALL),
    ("prefill", 256): ((32, 32, 8, 2), (32, 32, 8, 1), (32, 16, 8, 1), *_SMALL),
    ("prefill", 512): ((32, 16, 8, 2), (32, 16, 8, 1), *_SMALL),
    ("decode", 64): ((16, 64, 4, 2), (16, 32, 4, 2), *_SMALL),
    ("decode", 128): ((16, 32, 4, 2), *_SMALL),
    ("decode", 256): _SMALL,
    ("decode", 512): _SMALL,
}


@dataclass(frozen=True, slots=True)
class Fitted:
    key: TileKey
    tile: Tile | None  #: None: nothing fits


def family(capability: int) -> list[int]:
    """The architectures that a file of tiles for ``capability`` serves."""
    name = table_name(capability)
    return [number for number in ARCHITECTURES if number >= capability and table_name(number) == name]


def candidates(capability: int, key: TileKey) -> list[Tile]:
    """What may be tried for ``key``: first what is in use."""
    table = _WITH_MATRIX if capability >= 80 and key.dtype != "float32" else _WITHOUT_MATRIX
    used = load_tiles(table_name(capability)).tiles.get(key)
    likely = [Tile(*numbers) for numbers in table[key.phase, key.head_size]]
    return likely if used is None else [used, *(tile for tile in likely if tile != used)]


def keys(kinds: Iterable[DType]) -> Iterator[TileKey]:
    for dtype, phase, storage, size in product(kinds, get_args(Phase), get_args(Storage), SIZES):
        yield TileKey(phase, dtype, storage, size)


def fit(capability: int, key: TileKey, judges: Sequence[Judge]) -> Fitted:
    """The first candidate that fits in the whole family, as each of ``judges`` sees it."""
    for tile in candidates(capability, key):
        if all(judge(member, key, tile) for judge in judges for member in family(capability)):
            return Fitted(key, tile)
    return Fitted(key, None)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("capability", type=int, choices=ARCHITECTURES)
    parser.add_argument("file", type=Path)
    parser.add_argument("--also", type=Path, action="append", default=[], help="a Python with another Triton")
    options = parser.parse_args(arguments)
    judges: list[Judge] = [fits, *map(Elsewhere, options.also)]
    fitted: list[Fitted] = []
    for key in keys(dtypes(options.capability)):
        fitted.append(fit(options.capability, key, judges))
        sys.stdout.write(f"sm_{options.capability} {fitted[-1]}\n")
        sys.stdout.flush()
    options.file.write_text(as_json({f.key: f.tile for f in fitted if f.tile is not None}), encoding="utf-8")
    return int(any(f.tile is None for f in fitted))


def as_json(tiles: dict[TileKey, Tile]) -> str:
    """A data file, a tile a line."""
    rows = ",\n".join(f"    {json.dumps(asdict(key) | asdict(tile))}" for key, tile in tiles.items())
    return (
        f'{{\n  "programs_per_processor": {PROGRAMS_PER_PROCESSOR},\n  "least_split_keys": {LEAST_SPLIT_KEYS},\n'
        f'  "tiles": [\n{rows}\n  ]\n}}\n'
    )


if __name__ == "__main__":
    raise SystemExit(main())
