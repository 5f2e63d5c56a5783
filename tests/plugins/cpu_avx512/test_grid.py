"""Every level against the float64 oracle, over what the backend declares."""

from __future__ import annotations

from itertools import cycle, product

import pytest

from core.backends.world import POISONS, Row, make_world

DTYPES = ("float32", "bfloat16", "float16")
SHAPES = tuple(product((16, 24, 64, 80, 128, 256), (8, 16, 32, 64)))
HEADS = ((2, 2), (4, 2), (3, 1), (9, 3), (8, 1), (14, 2), (32, 1))


def slopes(heads: int) -> tuple[float, ...]:
    return tuple(2.0 ** (-8 * (h + 1) / heads) for h in range(heads))


def sinks(heads: int) -> tuple[float, ...]:
    return tuple(h / heads - 0.5 for h in range(heads))


FEATURES = {
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


def mixed(block_size: int) -> tuple[list[Row], int]:
    """Decodes, prefills and later chunks around the edges of a block; rows and number of decodes."""
    edges = (1, block_size - 1, block_size, block_size + 1, 2 * block_size + 3)
    decodes = [Row(1, n) for n in edges]
    return [*decodes, Row(block_size, block_size), Row(5, 2 * block_size + 1), Row(21, 39)], len(decodes)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mixed_batch_equals_the_oracle(backend, dtype, feature) -> None:
    start = 7 * DTYPES.index(dtype) + list(FEATURES).index(feature)
    shapes = [SHAPES[(start + step) % len(SHAPES)] for step in range(0, len(SHAPES), 9)]
    for (head_size, block_size), heads, poison in zip(
        shapes, cycle(HEADS[start % len(HEADS) :] + HEADS), cycle(POISONS)
    ):
        rows, decodes = mixed(block_size)
        world = make_world(
            rows, dtype, heads, head_size, block_size, num_decodes=decodes, seed=start, **FEATURES[feature](heads[0])
        )
        world.check(world.run(backend, poison))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(64, 24), (16, 128), (8, 8), (72, 40)])
def test_values_may_have_another_size_than_keys(backend, dtype, sizes) -> None:
    world = make_world(
        [Row(1, 40), Row(1, 3), Row(19, 50)], dtype, (6, 2), sizes[0], 16, num_decodes=2, head_size_v=sizes[1]
    )
    world.check(world.run(backend, float("nan")))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"sliding_window": 5}])
def test_without_causal_mask_every_query_sees_the_whole_sequence(backend, dtype, options) -> None:
    world = make_world([Row(1, 33), Row(20, 20), Row(7, 70)], dtype, num_decodes=1, causal=False, **options)
    world.check(world.run(backend, float("nan")))


@pytest.mark.parametrize("heads", [(28, 4), (40, 1), (100, 1), (200, 2)])
def test_more_heads_to_a_key_than_an_item_holds(backend, heads) -> None:
    world = make_world([Row(1, 50), Row(9, 33)], "float32", heads, 32, 16, num_decodes=1)
    world.check(world.run(backend, float("nan")))


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_contexts_are_split_among_threads(backend, dtype) -> None:
    options = {"sinks": (0.5, -1.0, 2.0), "alibi_slopes": (0.01, 0.02, 0.04)}
    for extra in ({}, options, {"sliding_window": 900}):
        world = make_world([Row(1, 3001), Row(1, 700)], dtype, (3, 1), 64, 32, num_decodes=2, **extra)
        world.check(world.run(backend, float("nan")))


def test_results_of_split_contexts_do_not_depend_on_time(fastest) -> None:
    world = make_world([Row(1, 3001), Row(1, 700)], "bfloat16", (3, 1), 64, 32, num_decodes=2)
    first = world.run(fastest)
    assert all((world.run(fastest) == first).all() for _ in range(10))
