"""Whether a tile fits: all that is launched with it compiles as it should, in registers and shared memory.

What fits depends on Triton, and a Python has one Triton. ``python -m baseboard_cuda.check.fits 90 KEY TILE``, where key
and tile are as in a file of tiles, is how :class:`Elsewhere` asks another Python.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Protocol, get_args

from baseboard.contract import DType
from baseboard_cuda.check.compile import compile_variant
from baseboard_cuda.check.variants import ARCHITECTURES, Kind, attention_variants, dtypes, features_of
from baseboard_cuda.tiles import Phase, Tile, TileKey, TileTable

#: Programs that fill a processor twice over, and splits that are worth a second launch.
PROGRAMS_PER_PROCESSOR: Final = 2
LEAST_SPLIT_KEYS: Final = 512
#: Exit code: not 1, which is also that of a program that could not tell.
DOES_NOT_FIT: Final = 3


class Judge(Protocol):
    """Says whether everything that has ``key`` compiles as it should with ``tile``."""

    def __call__(self, capability: int, key: TileKey, tile: Tile) -> bool: ...


def fits(capability: int, key: TileKey, tile: Tile) -> bool:
    """With the Triton of this Python."""
    table = candidate_table(key, tile)
    dtype: DType = next(d for d in dtypes(capability) if d == key.dtype)
    sizes = dict.fromkeys((80 if key.head_size == 128 else key.head_size, key.head_size))
    for size in sizes:
        for features in reversed(features_of(size)):
            for variant in attention_variants(capability, table, Kind(dtype, key.kv_dtype, size, features)):
                if f"paged_attention {key.phase}" in variant.label and compile_variant(variant).problems:
                    return False
    return True


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """With the Triton of another Python, in which this plugin is installed, too."""

    python: Path

    def __call__(self, capability: int, key: TileKey, tile: Tile) -> bool:
        """Raises ``RuntimeError`` when that Python cannot tell."""
        told = [str(capability), json.dumps(asdict(key)), json.dumps(asdict(tile))]
        command = [str(self.python), "-m", "baseboard_cuda.check.fits", *told]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in {0, DOES_NOT_FIT}:
            raise RuntimeError(f"{self.python} cannot tell whether a tile fits: {done.stderr.strip()}")
        return done.returncode == 0


def candidate_table(key: TileKey, tile: Tile) -> TileTable:
    """A table in which both phases have ``tile``: for trying it out in the one that ``key`` names."""
    tiles = {replace(key, phase=phase): tile for phase in get_args(Phase)}
    return TileTable("candidate", tiles, PROGRAMS_PER_PROCESSOR, LEAST_SPLIT_KEYS)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("capability", type=int, choices=ARCHITECTURES)
    parser.add_argument("key", type=json.loads)
    parser.add_argument("tile", type=json.loads)
    options = parser.parse_args(arguments)
    fitting = fits(options.capability, TileKey(**options.key), Tile(**options.tile))
    return 0 if fitting else DOES_NOT_FIT


if __name__ == "__main__":
    sys.exit(main())
