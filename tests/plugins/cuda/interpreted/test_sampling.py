"""The operator ``sample`` against a sort in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baseboard_cuda.sampling import Draws, sample


def kept_weights(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """What each token weighs in the draw: the chain of ``SamplingParams``, by sorting."""
    weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    order = np.lexsort((np.arange(len(logits)), -logits))
    if 0 < top_k < len(logits):
        order = order[:top_k]
    if top_p < 1:
        reached = np.cumsum(weights[order])
        order = order[: 1 + int(np.sum(reached[:-1] < top_p * reached[-1]))]
    result = np.zeros_like(weights)
    result[order] = weights[order]
    return np.where(result >= min_p, result, 0.0)


def draws(rows: int, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, uniform=0.5) -> Draws:
    def column(value, dtype):
        return torch.as_tensor(np.broadcast_to(value, rows).copy()).to(dtype)

    return Draws(
        column(temperature, torch.float32),
        column(top_k, torch.int32),
        column(top_p, torch.float32),
        column(min_p, torch.float32),
        column(uniform, torch.float64),
    )


def check_draw(logits: np.ndarray, token: int, uniform: float, weights: np.ndarray) -> None:
    """The token is kept, and its stretch of the cumulated weights holds the random number, but for rounding."""
    assert weights[token] > 0, f"token {token} was filtered out"
    reached = np.cumsum(weights) / weights.sum()
    below = reached[token] - weights[token] / weights.sum()
    assert below - 1e-6 <= uniform <= reached[token] + 1e-6


def everything(logits: np.ndarray, least: float, **how) -> set[int]:
    """All tokens that have the share ``least`` or more of all draws: some random number here gives each of them."""
    count = round(1 / least)
    numbers = (np.arange(count) + 0.5) / count
    rows = torch.from_numpy(np.tile(logits.astype(np.float32), (len(numbers), 1)))
    return set(sample(rows, draws(len(numbers), uniform=numbers, **how)).tolist())


LOGITS = np.log(np.array([0.05, 0.3, 0.1, 0.3, 0.05, 0.2]))


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({}, {0, 1, 2, 3, 4, 5}),
        ({"top_k": 1}, {1}),  # of equal ones the first
        ({"top_k": 3}, {1, 3, 5}),
        ({"top_k": 5}, {0, 1, 2, 3, 5}),
        ({"top_k": 6}, {0, 1, 2, 3, 4, 5}),
        ({"top_p": 0.2}, {1}),
        ({"top_p": 0.59}, {1, 3}),
        ({"top_p": 0.79}, {1, 3, 5}),
        ({"top_p": 0.92}, {0, 1, 2, 3, 5}),
        ({"top_p": 1e-9}, {1}),
        ({"top_k": 3, "top_p": 0.3}, {1}),  # 0.3 of 0.8
        ({"top_k": 3, "top_p": 0.74}, {1, 3}),  # 0.6 is three quarters of what top-k leaves
        ({"top_k": 3, "top_p": 0.76}, {1, 3, 5}),
        ({"min_p": 0.6}, {1, 3, 5}),
        ({"min_p": 1.0}, {1, 3}),
        ({"min_p": 0.6, "top_k": 2}, {1, 3}),
        ({"temperature": 0.0}, {1}),
        ({"temperature": 1e-30}, {1, 3}),
        ({"temperature": 0.5, "top_p": 0.76}, {1, 3}),  # squared: 0.09 0.09 0.04 0.01 0.0025 0.0025 of 0.235
        ({"temperature": 0.5, "top_p": 0.78}, {1, 3, 5}),
    ],
)
def test_who_can_be_drawn(how, kept) -> None:
    assert everything(LOGITS, 0.05 if len(kept) > 3 else 0.125, **how) == kept


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([1, 2, 7, 2048, 2049]),
    steps=st.sampled_from([None, 4]),  # a few different logits only: many equals
    temperature=st.sampled_from([0.2, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 2, 50, 5000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
)
def test_a_random_row_is_drawn_as_by_sorting(seed, size, steps, temperature, top_k, top_p, min_p) -> None:
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, size).astype(np.float32)
    if steps is not None:
        logits = np.round(logits / steps) * np.float32(steps)
    logits[random.random(size) < 0.1] = -np.inf
    logits[random.integers(size)] = 0.0
    uniform = random.random(2)
    rows = torch.from_numpy(np.tile(logits, (2, 1)))
    got = sample(rows, draws(2, temperature, top_k, top_p, min_p, uniform)).tolist()
    # As the kernel has them: float32.
    weights = kept_weights(logits, float(np.float32(temperature)), top_k, float(np.float32(top_p)), min_p)
    for token, number in zip(got, uniform, strict=True):
        check_draw(logits, token, number, weights)


def test_rows_are_apart_and_may_be_strided() -> None:
    generator = np.random.default_rng(3)
    logits = generator.normal(size=(4, 50)).astype(np.float32)
    how = draws(4, np.array([0.0, 1.0, 0.5, 1.0]), [0, 3, 0, 1], [1.0, 1.0, 0.5, 1.0], uniform=[0.1, 0.9, 0.5, 0.99])
    wide = torch.full((4, 80), torch.nan)
    wide[:, 10:60] = torch.from_numpy(logits)
    together = sample(wide[:, 10:60], how)
    assert together.dtype == torch.int64
    for row, token in enumerate(together.tolist()):
        alone = Draws(*(getattr(how, name)[row : row + 1] for name in Draws.__slots__))
        assert sample(torch.from_numpy(logits[row : row + 1]), alone).tolist() == [token]
    assert together[0] == logits[0].argmax()
    assert together[3] == logits[3].argmax()
    assert sample(torch.from_numpy(logits.T.copy()).T, how).tolist() == together.tolist()
    assert sample(torch.zeros(0, 50), draws(0)).shape == (0,)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("row", "token"),
    [
        ([1.0, float("nan"), 2.0], -1),
        ([1.0, float("inf"), 2.0], -1),
        ([-float("inf")] * 3, -1),
        ([-float("inf"), -5.0, -float("inf")], 1),
    ],
)
def test_rows_that_leave_nothing_to_draw(row, token, temperature) -> None:
    assert sample(torch.tensor([row]), draws(1, temperature)).tolist() == [token]


def test_both_zeros_are_equal() -> None:
    assert everything(np.array([-0.0, 0.0, -1.0]), 0.25, top_k=1) == {0}
    assert everything(np.array([-0.0, 0.0, -1.0]), 0.25, min_p=1.0) == {0, 1}


def test_the_backend_has_it(backend) -> None:
    assert backend.operator_kernel("sample", {}) is sample
