"""Keys and values as int8 with a scale for each token and head: the oracle is given what was rounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from core.backends.oracle import attention
from core.backends.world import Row, World, make_world


def rounded(rows: torch.Tensor) -> np.ndarray:
    """What is left of ``rows`` ``[L, Hkv, D]`` after rounding each to 255 steps of its largest element.

    Scales are float32, and so is the division by them: float16 and bfloat16 rows often lie just between two steps.
    """
    exact = rows.float().numpy()
    scales = np.abs(exact).max(axis=-1, keepdims=True) / np.float32(127)
    return np.rint(exact / scales).astype(np.float64) * scales


def truth(world: World) -> np.ndarray:
    parts = zip(world.query, world.key, world.value, strict=True)
    return np.concatenate([attention(q.double().numpy(), rounded(k), rounded(v), world.spec) for q, k, v in parts])


def int8_world(dtype: str, head_size: int, block_size: int, **options: object) -> World:
    rows = [Row(1, 1), Row(1, block_size + 1), Row(1, 700), Row(9, 9), Row(30, 75)]
    world = make_world(rows, dtype, (6, 2), head_size, block_size, num_decodes=3, **options)
    world.kv = replace(world.kv, kv_dtype="int8")
    return world


# Queries and weights are rounded to 15 bits: errors of some 2^-15 beside what the dtype of the result adds.
@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 3e-4), ("bfloat16", 4e-3), ("float16", 8e-4)])
@pytest.mark.parametrize("options", [{}, {"sliding_window": 11}, {"softcap": 3.0, "sinks": (0.1, 1, 2, 0.3, -1, 0)}])
def test_int8_differs_from_the_oracle_by_its_rounding_only(backend, dtype, allowed, options) -> None:
    for head_size, block_size in ((64, 16), (24, 8), (128, 32), (256, 64)):
        world = int8_world(dtype, head_size, block_size, **options)
        got = world.run(backend, float("nan")).double().numpy()
        expected = truth(world)
        errors = np.linalg.norm(got - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
        assert errors.max() <= allowed


def test_int8_halves_the_pool(fastest) -> None:
    world = int8_world("bfloat16", 128, 32)
    full = fastest.kv_block_nbytes(replace(world.kv, kv_dtype="auto"))
    assert full == 2 * 2 * 32 * 128 * 2
    assert fastest.kv_block_nbytes(world.kv) == full // 2 + 2 * 2 * 32 * 4


def test_rows_of_zeros_and_of_nothing_that_integers_express(fastest) -> None:
    world = int8_world("float32", 16, 16)
    for tensor in (*world.key, *world.value):
        tensor[0] = 0.0
    got = world.run(fastest, float("nan"))
    assert got.isfinite().all()
    assert (got[0] == 0).all()  # its sequence has but one value, and that is zero
