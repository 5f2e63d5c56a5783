"""Chance: the numbers, the pick, and the distribution of what comes out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baseboard.runtime.sampler import Sampler
from baseboard.runtime.sampling_draw import pick, uniform
from core.sampler.oracle import distribution, row

JUST_BELOW_ONE = 1 - 2.0**-53


def test_uniform_numbers_stay_what_they_are():
    # A change would give every seeded request other tokens than the release before.
    assert [uniform(0, 0, 0), uniform(7, 1, 2), uniform(-1, 0, 5)] == [
        0.5213453336981362,
        0.2534950884152546,
        0.7042707096598851,
    ]


@given(seed=st.integers(-(2**63), 2**64 - 1), sample=st.integers(0, 1000), position=st.integers(0, 10**7))
def test_uniform_is_a_pure_function_into_the_half_open_interval(seed, sample, position):
    number = uniform(seed, sample, position)
    assert 0 <= number < 1
    assert uniform(seed, sample, position) == number


def test_each_argument_changes_the_number():
    numbers = {
        uniform(seed, sample, position) for seed in (1, 11, 111) for sample in range(12) for position in range(12)
    }
    assert len(numbers) == 3 * 12 * 12


def test_pick_is_the_inverse_of_the_cumulated_weights():
    weights = torch.tensor([[0.0, 2.0, 0.0, 1.0, 5.0, 0.0]] * 7, dtype=torch.float64)
    numbers = [0.0, 0.2499, 0.25, 0.3749, 0.375, 0.99, JUST_BELOW_ONE]
    assert pick(weights, numbers).tolist() == [1, 1, 3, 3, 4, 4, 4]


@given(
    weights=st.lists(st.sampled_from([0.0, 1e-300, 0.1, 1.0]), min_size=1, max_size=9),
    number=st.floats(0, JUST_BELOW_ONE),
)
def test_a_token_of_weight_zero_is_never_picked(weights, number):
    weights[len(weights) // 2] = 1.0
    picked = pick(torch.tensor([weights], dtype=torch.float64), [number]).item()
    assert weights[picked] > 0


def test_a_scan_that_is_not_monotonic_picks_no_token_of_weight_zero(monkeypatch):
    # As a parallel scan may leave it: the sum wavers where nothing is added.
    wavering = torch.tensor([[1.0, 1.25, 1.0, 2.0, 2.25]], dtype=torch.float64)
    monkeypatch.setattr(torch.Tensor, "cumsum", lambda weights, dim: wavering.clone())
    weights = torch.tensor([[1.0, 0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    assert [pick(weights, [number]).item() for number in (0.0, 0.49, 0.5, 0.55, JUST_BELOW_ONE)] == [0, 0, 3, 3, 3]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 4},
        {"top_p": 0.8},
        {"min_p": 0.15},
        {"temperature": 1.4, "top_k": 6, "top_p": 0.9, "logit_bias": {0: 2.0}},
    ],
)
def test_draws_follow_the_distribution(params):
    logits = [2.0, 1.5, 1.0, 1.0, 0.5, 0.0, -0.5, -4.0]
    n = 20_000
    rows = [row((0,), (1,) * (i % 100), seed=i // 100, **params) for i in range(n)]
    counts = Counter(Sampler().sample(torch.tensor([logits]).expand(n, -1), rows).token_ids)

    expected = n * distribution(logits, rows[0])
    observed = np.array([counts[token] for token in range(len(logits))])
    assert observed[expected == 0].sum() == 0
    possible = expected > 0
    chi_square = ((observed - expected)[possible] ** 2 / expected[possible]).sum()
    # 99.9 % quantiles of chi-square for 1 .. 7 degrees of freedom; the seeds are fixed, so this cannot flicker.
    assert chi_square < [10.83, 13.82, 16.27, 18.47, 20.52, 22.46, 24.32][possible.sum() - 2]


def test_temperature_zero_ignores_the_seed():
    logits = torch.tensor([[0.0, 0.5, 0.4]]).expand(50, -1)
    rows = [row(seed=seed, temperature=0.0) for seed in range(50)]
    assert set(Sampler().sample(logits, rows).token_ids) == {1}


def test_samples_of_one_request_differ():
    logits = torch.zeros(1, 1000)
    tokens = [Sampler().sample(logits, [row(seed=5, sample_index=i, n=8)]).token_ids for i in range(8)]
    assert len(set(tokens)) == 8
