"""The tuned files: one for every architecture, complete."""

from __future__ import annotations

from itertools import product

import pytest

from baseboard_cuda.tiles import INTERPRETED, Tile, TileKey, load_tiles, parse_tiles, table_name

NAMES = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", INTERPRETED)


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        *((75, "sm_75"), (80, "sm_80"), (86, "sm_86"), (87, "sm_86"), (89, "sm_86"), (90, "sm_90"), (100, "sm_100")),
        *((103, "sm_100"), (120, "sm_120"), (121, "sm_120"), (130, "sm_120")),
    ],
)
def test_every_gpu_gets_its_own_table_or_the_nearest_older_one(capability, name) -> None:
    assert table_name(capability) == name


def test_a_gpu_older_than_all_tables_has_none() -> None:
    with pytest.raises(KeyError, match="the oldest are for 75"):
        table_name(70)


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_complete(name) -> None:
    table = load_tiles(name)
    expected = {"sm_75", INTERPRETED} & {name}
    assert set(table.dtypes) == {"float32", "float16"} | (set() if expected else {"bfloat16"})
    for dtype, phase, storage, size in product(
        table.dtypes, ("decode", "prefill"), ("native", "fp8"), (1, 64, 65, 128, 200, 256, 512)
    ):
        tile = table.find(phase, dtype, storage, size)
        assert tile.rows >= 8
        assert tile.keys >= 16
        assert all(number & (number - 1) == 0 for number in (tile.rows, tile.keys, tile.warps))
    assert table.programs_per_processor >= 1
    assert table.least_split_keys >= 16
    with pytest.raises(KeyError, match=f"{name} has no tile for decode, float32, native, head size 513"):
        table.find("decode", "float32", "native", 513)


def test_the_smallest_tile_that_holds_a_head_is_taken() -> None:
    row = {"phase": "decode", "dtype": "float16", "storage": "native", "rows": 16, "warps": 4, "stages": 2}
    data = {
        "programs_per_processor": 2,
        "least_split_keys": 64,
        "tiles": [row | {"head_size": 128, "keys": 32}, row | {"head_size": 64, "keys": 64}],
    }
    table = parse_tiles("some", data)
    assert table.find("decode", "float16", "native", 64) == Tile(16, 64, 4, 2)
    assert table.find("decode", "float16", "native", 80) == table.tiles[TileKey("decode", "float16", "native", 128)]
