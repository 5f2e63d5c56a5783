"""The kernels against the float64 oracle, over everything that is declared; pools hold poison where nobody owns."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, product

import pytest
import torch
from hypothesis import given, settings

import baseboard_cuda
from baseboard_cuda.backend import CudaBackend
from baseboard_cuda.opening import open_interpreter
from baseboard_cuda.options import Options
from baseboard_cuda.tiles import Tile
from core.backends.test_reference_grid import FEATURES
from core.backends.test_reference_random import worlds
from core.backends.world import POISONS, Row, make_world
from plugins.cuda.interpreted.judging import check

DTYPES = ("float32", "float16")  # the interpreter multiplies bfloat16 wrongly
HEADS = ((2, 2), (4, 2), (3, 1), (9, 3), (8, 1))
SIZES = (16, 24, 64, 80)
BLOCK_SIZES = (1, 8, 16)
COMBINATIONS = tuple(product(DTYPES, FEATURES, ("decode", "prefill", "chunk", "mixed", "padded")))


def batch_rows(kind: str, block_size: int) -> tuple[list[Row], int]:
    """Rows and number of decodes: few, since a program takes the interpreter some 50 ms."""
    edge, beyond = block_size + 1, 2 * block_size + 3
    padding = [Row(1, 1, padding=True)] * 2
    return {
        "decode": ([Row(1, 1), Row(1, block_size), Row(1, beyond)], 3),
        "prefill": ([Row(edge, edge), Row(beyond, beyond)], 0),
        "chunk": ([Row(2, edge), Row(edge, beyond)], 0),
        "mixed": ([Row(1, edge), Row(1, 40), Row(2, block_size + 2), Row(edge, edge)], 2),
        "padded": ([Row(1, edge), *padding, Row(3, beyond), *padding], 3),
    }[kind]


@pytest.mark.parametrize(
    ("dtype", "feature", "kind", "heads", "size", "block_size", "poison"),
    [
        (*combination, heads, size, block_size, poison)
        for combination, heads, size, block_size, poison in zip(
            COMBINATIONS,
            cycle(HEADS),
            cycle(SIZES),
            cycle((*BLOCK_SIZES, 4)),
            cycle((*POISONS, float("nan"))),
            strict=False,
        )
    ],
)
def test_every_feature_in_every_batch(backend, dtype, feature, kind, heads, size, block_size, poison) -> None:
    rows, num_decodes = batch_rows(kind, block_size)
    world = make_world(rows, dtype, heads, size, block_size, num_decodes=num_decodes, **FEATURES[feature](heads[0]))
    check(world, world.run(backend, poison))


@pytest.mark.parametrize("feature", ["plain", "everything"])
@pytest.mark.parametrize("kind", ["mixed", "padded"])
def test_what_lies_in_other_slots_changes_no_bit(backend, feature, kind) -> None:
    rows, num_decodes = batch_rows(kind, 8)
    world = make_world(rows, "float16", (4, 2), 24, 8, num_decodes=num_decodes, **FEATURES[feature](4))
    first, *others = [world.run(backend, poison) for poison in POISONS]
    check(world, first)
    for other in others:
        assert torch.equal(other[world.real], first[world.real])


@pytest.mark.parametrize("feature", FEATURES)
def test_value_head_size_may_differ(backend, feature) -> None:
    rows, num_decodes = batch_rows("mixed", 8)
    world = make_world(rows, "float32", (4, 2), 24, 8, num_decodes=num_decodes, head_size_v=10, **FEATURES[feature](4))
    check(world, world.run(backend, torch.nan))


@pytest.mark.parametrize("feature", FEATURES)
def test_non_causal(backend, feature) -> None:
    rows = [Row(1, 17), Row(1, 40), Row(5, 19), Row(30, 30)]
    world = make_world(rows, "float32", (4, 2), 16, 8, num_decodes=2, causal=False, **FEATURES[feature](4))
    check(world, world.run(backend, torch.nan))


def test_shared_prefix_blocks(backend) -> None:
    rows = [Row(1, 19), Row(1, 30), Row(5, 22), Row(25, 33)]
    world = make_world(rows, "float16", block_size=8, num_decodes=2, shared_blocks=1)
    assert len({int(table[0]) for table in world.tables}) == 1
    check(world, world.run(backend, torch.nan))


@pytest.mark.parametrize("ratio", [1, 2, 5, 7, 12, 14, 16, 32, 40])
def test_every_head_ratio(backend, ratio) -> None:
    """More heads than a tile has rows are cut into parts, in decodes from 17 and in prefills from 33."""
    rows = [Row(1, 1), Row(1, 33), Row(5, 16), Row(2, 17)]
    world = make_world(rows, "float32", (ratio * 2, 2), 16, 16, num_decodes=2)
    check(world, world.run(backend, torch.nan))


@pytest.mark.parametrize("size", [1, 8, 112, 120, 256, 512])
def test_every_head_size(backend, size) -> None:
    world = make_world([Row(1, 20), Row(6, 11)], "float32", (4, 2), size, 8, num_decodes=1)
    check(world, world.run(backend, torch.nan))


def test_decodes_are_split_and_joined(backend, monkeypatch) -> None:
    """Two sequences on a chip with room for more: the long one's keys are split, and so are the short one's."""
    from baseboard_cuda import attention

    launched = []

    def spy(self, *args):
        launched.append(split(self, *args))
        return launched[-1]

    split = attention.PagedAttention._splits
    monkeypatch.setattr(attention.PagedAttention, "_splits", spy)
    for feature in ("plain", "sinks", "everything"):
        world = make_world([Row(1, 130), Row(1, 3)], "float32", (4, 2), 16, 8, num_decodes=2, **FEATURES[feature](4))
        check(world, world.run(backend, torch.nan))
    assert max(launched) >= 2
    chunk = make_world([Row(3, 90)], "float32", (4, 2), 16, 8, **FEATURES["sinks"](4))
    check(chunk, chunk.run(backend, torch.nan))
    assert launched[-1] > 1


@pytest.mark.parametrize("feature", ["plain", "everything"])
@pytest.mark.parametrize(("rows", "keys"), [(8, 16), (16, 16), (64, 32)])
def test_every_size_of_tile(rows, keys, feature) -> None:
    """The smallest that is shipped, and one that is larger than all queries together."""
    chip = open_interpreter(Options())
    tiles = {key: Tile(rows, keys, 4, 1) for key in chip.tiles.tiles}
    backend = CudaBackend(replace(chip, tiles=replace(chip.tiles, tiles=tiles)), Options())
    batch, num_decodes = batch_rows("mixed", 8)
    world = make_world(batch, "float32", (6, 2), 24, 8, num_decodes=num_decodes, **FEATURES[feature](6))
    check(world, world.run(backend, torch.nan))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(world=worlds())
def test_a_random_mixed_batch_equals_the_oracle(world) -> None:
    if world.kv.dtype == "bfloat16":
        return
    (device,) = [d for d in baseboard_cuda.probe_devices() if d.device_type == "cpu"]
    check(world, world.run(baseboard_cuda.open_backend(device, {}), torch.nan))
