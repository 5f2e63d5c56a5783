"""The reference backend against the float64 oracle, over everything it declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle, product
from typing import Any

import pytest
import torch

from core.backends.world import POISONS, Row, World, make_world

DTYPES = ("float32", "bfloat16", "float16")
HEAD_SIZES = (16, 64, 80, 128)
HEADS = ((2, 2), (4, 2), (3, 1), (8, 2), (9, 3), (8, 1))
BLOCK_SIZES = (1, 8, 16, 32)


def slopes(heads: int) -> tuple[float, ...]:
    return tuple(2.0 ** (-8 * (h + 1) / heads) for h in range(heads))


def sinks(heads: int) -> tuple[float, ...]:
    return tuple(h / heads - 0.5 for h in range(heads))


FEATURES: Mapping[str, Callable[[int], dict[str, Any]]] = {
    "plain": lambda _: {},
    "window": lambda _: {"sliding_window": 7},
    "softcap": lambda _: {"softcap": 2.0},
    "alibi": lambda heads: {"alibi_slopes": slopes(heads)},
    "sinks": lambda heads: {"sinks": sinks(heads)},
    "everything": lambda heads: {
        "sliding_window": 9,
        "softcap": 1.5,
        "alibi_slopes": slopes(heads),
        "sinks": sinks(heads),
    },
}


def lengths(block_size: int) -> list[int]:
    return [n for n in (1, block_size - 1, block_size, block_size + 1, 2 * block_size + 3) if n > 0]


def batch_rows(kind: str, block_size: int) -> tuple[list[Row], int]:
    """Rows and number of decodes."""
    some = lengths(block_size)
    decodes = [Row(1, n) for n in some]
    prefills = [Row(n, n) for n in some]
    chunks = [Row(max(1, n // 2), n) for n in some]
    padding = [Row(1, 1, padding=True)] * 3
    return {
        "decode": (decodes, len(decodes)),
        "prefill": (prefills, 0),
        "chunk": (chunks, 0),
        "mixed": (decodes + chunks + prefills[-2:], len(decodes)),
        "padded": (decodes[-2:] + padding + chunks[-2:] + padding, 5),
    }[kind]


def check_all_poisons(world: World, backend: object) -> None:
    results = [world.run(backend, poison) for poison in POISONS]
    world.check(results[0])
    for result in results[1:]:
        assert torch.equal(result[world.real], results[0][world.real])


COMBINATIONS = tuple(product(DTYPES, FEATURES, BLOCK_SIZES, ("decode", "prefill", "chunk", "mixed", "padded")))
SHAPES = tuple(product(HEADS, HEAD_SIZES))


@pytest.mark.parametrize(
    ("dtype", "feature", "block_size", "kind", "shape"),
    [(*combination, shape) for combination, shape in zip(COMBINATIONS, cycle(SHAPES), strict=False)],
)
def test_every_feature_in_every_batch(backend, dtype, feature, block_size, kind, shape) -> None:
    heads, head_size = shape
    rows, num_decodes = batch_rows(kind, block_size)
    options = FEATURES[feature](heads[0])
    check_all_poisons(
        make_world(rows, dtype, heads, head_size, block_size, num_decodes=num_decodes, **options), backend
    )


@pytest.mark.parametrize(("dtype", "heads", "head_size"), list(product(DTYPES, HEADS, HEAD_SIZES)))
def test_every_shape_in_a_mixed_batch(backend, dtype, heads, head_size) -> None:
    rows, num_decodes = batch_rows("mixed", 8)
    check_all_poisons(make_world(rows, dtype, heads, head_size, 8, num_decodes=num_decodes, seed=1), backend)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("feature", FEATURES)
def test_value_head_size_may_differ(backend, dtype, feature) -> None:
    rows, num_decodes = batch_rows("mixed", 8)
    world = make_world(rows, dtype, (4, 2), 24, 8, num_decodes=num_decodes, head_size_v=10, **FEATURES[feature](4))
    check_all_poisons(world, backend)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("feature", FEATURES)
def test_non_causal(backend, dtype, feature) -> None:
    rows, num_decodes = batch_rows("mixed", 8)
    check_all_poisons(
        make_world(rows, dtype, (4, 2), 16, 8, num_decodes=num_decodes, causal=False, **FEATURES[feature](4)), backend
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [[Row(1, 19), Row(1, 30), Row(5, 22), Row(25, 33)], [Row(3, 17), Row(16, 32)]])
def test_shared_prefix_blocks(backend, dtype, rows) -> None:
    decodes = sum(row.query_len == 1 for row in rows)
    world = make_world(rows, dtype, block_size=8, num_decodes=decodes, shared_blocks=1)
    assert len({int(table[0]) for table in world.tables}) == 1
    check_all_poisons(world, backend)
