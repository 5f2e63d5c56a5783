"""Sizes of tiles and numbers of warps, read from the data files in ``tuned/``: one for each family of GPUs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from baseboard.contract import KVDType

Phase: TypeAlias = Literal["decode", "prefill"]
Storage: TypeAlias = Literal["native", "fp8"]

INTERPRETED: Final = "interpreted"
#: Versions of Triton with each of which all that is launched with the shipped tiles was compiled and fits.
FITTED_FOR: Final = ("3.7.1", "3.9.0")


@dataclass(frozen=True, slots=True)
class Tile:
    """How the attention kernel is cut up."""

    rows: int  #: queries times the heads that share a KV head
    keys: int
    warps: int
    stages: int  #: loads under way at once


@dataclass(frozen=True, slots=True)
class TileKey:
    phase: Phase
    dtype: str
    storage: Storage
    head_size: int  #: the largest that the tile was made for

    @property
    def kv_dtype(self) -> KVDType:
        """What layers with this key store."""
        return "fp8_e4m3" if self.storage == "fp8" else "auto"


@dataclass(frozen=True, slots=True)
class TileTable:
    """The tiles of one family of GPUs."""

    name: str
    tiles: dict[TileKey, Tile]
    programs_per_processor: int  #: keys are split until so many programs run
    least_split_keys: int  #: no split is shorter

    def find(self, phase: Phase, dtype: str, storage: Storage, head_size: int) -> Tile:
        """The tile for the smallest size that holds ``head_size``. ``KeyError`` where none does."""
        sizes = [k.head_size for k in self.tiles if (k.phase, k.dtype, k.storage) == (phase, dtype, storage)]
        fitting = min((size for size in sizes if size >= head_size), default=None)
        if fitting is None:
            raise KeyError(f"{self.name} has no tile for {phase}, {dtype}, {storage}, head size {head_size}")
        return self.tiles[TileKey(phase, dtype, storage, fitting)]

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key.dtype for key in self.tiles))


def table_name(capability: int) -> str:
    """The data file for a GPU of this compute capability (90 is 9.0): its own, or the nearest older one's."""
    older = [number for number in _capabilities() if number <= capability]
    if not older:
        raise KeyError(f"no tiles for compute capability {capability}: the oldest are for {min(_capabilities())}")
    return f"sm_{max(older)}"


def load_tiles(name: str) -> TileTable:
    """The table called ``name``: ``sm_90``, or ``interpreted``."""
    text = (files("baseboard_cuda") / "tuned" / f"{name}.json").read_text(encoding="utf-8")
    return parse_tiles(name, json.loads(text))


def read_tiles(file: Path) -> TileTable:
    """A table of a user's own, named like its file. ``OSError``, ``ValueError``, ``KeyError`` or ``TypeError``."""
    return parse_tiles(file.stem, json.loads(file.read_text(encoding="utf-8")))


def parse_tiles(name: str, data: Any) -> TileTable:
    tiles = {
        TileKey(row["phase"], row["dtype"], row["storage"], row["head_size"]): Tile(
            row["rows"], row["keys"], row["warps"], row["stages"]
        )
        for row in data["tiles"]
    }
    return TileTable(name, tiles, data["programs_per_processor"], data["least_split_keys"])


def _capabilities() -> list[int]:
    names = [entry.name for entry in (files("baseboard_cuda") / "tuned").iterdir()]
    return [int(name[3:-5]) for name in names if name.startswith("sm_") and name.endswith(".json")]
