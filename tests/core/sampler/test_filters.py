"""What temperature, top-k, top-p and min-p keep: by hand, and against a plain float64 chain."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from baseboard.contract import SamplingParams
from baseboard.runtime.sampler import edited_logits
from baseboard.runtime.sampling_filters import kept_weights
from core.sampler.oracle import distribution, margin, row

# Logits of probabilities 1/2, 1/4, 1/8, 1/8 at tokens 2, 0, 1, 3.
HALVES = [math.log(p) for p in (0.25, 0.125, 0.5, 0.125)]


def probabilities(scores, *params: SamplingParams) -> np.ndarray:
    weights = kept_weights(torch.as_tensor(scores, dtype=torch.float32), params).numpy()
    return weights / weights.sum(-1, keepdims=True)


def kept(scores, **params) -> set[int]:
    return set(np.flatnonzero(probabilities([scores], SamplingParams(**params))[0]).tolist())


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_k": 1}, {2}),
        ({"top_k": 2}, {0, 2}),
        ({"top_k": 3}, {0, 1, 2}),  # 1 and 3 tie for the third place: the lower id has it
        ({"top_k": 4}, {0, 1, 2, 3}),
        ({"top_k": 10**30}, {0, 1, 2, 3}),
        ({"top_p": 1e-300}, {2}),
        ({"top_p": 0.49}, {2}),
        ({"top_p": 0.51}, {0, 2}),
        ({"top_p": 0.74}, {0, 2}),
        ({"top_p": 0.76}, {0, 1, 2}),
        ({"top_p": 0.99}, {0, 1, 2, 3}),
        ({"min_p": 0.51}, {2}),
        ({"min_p": 0.49}, {0, 2}),
        ({"min_p": 0.24}, {0, 1, 2, 3}),
        ({"min_p": 1.0}, {2}),
        ({"top_k": 2, "top_p": 0.6}, {2}),  # 2/3 of what top-k leaves; over all tokens it would take two
        ({"top_k": 3, "min_p": 0.3}, {0, 2}),
        ({"temperature": 100.0, "top_p": 0.3}, {0, 2}),  # nearly uniform: the first alone is not 0.3
        ({"temperature": 0.5, "top_p": 0.7}, {2}),  # squared: 16, 4, 1, 1 of 22
    ],
)
def test_hand_made_table(params, expected):
    assert kept(HALVES, **params) == expected


@pytest.mark.parametrize(("top_p", "count"), [(0.1, 1), (0.2, 2), (0.5, 5), (0.7, 7), (0.9, 9), (0.91, 10)])
def test_equal_tokens_are_kept_in_the_order_of_their_ids_until_the_sum_reaches_top_p(top_p, count):
    assert kept([0.0] * 10, top_p=top_p) == set(range(count))


def test_top_k_of_equal_tokens_keeps_exactly_k():
    assert kept([1.0, 3.0, 3.0, 3.0, 0.0], top_k=2) == {1, 2}


def test_top_p_beyond_the_shortlist_of_likely_tokens():
    # 3000 equal tokens: half of the mass is 1500 of them, more than a first look at the most likely would show.
    flat = [0.0] * 3000
    peaked = [9.0, 8.0] + [-9.0] * 2998  # e^8 / (e^9 + e^8) = 0.269, the rest weighs 0.04 together
    both = probabilities([flat, peaked], SamplingParams(top_p=0.5), SamplingParams(top_p=0.9))
    assert np.flatnonzero(both[0]).tolist() == list(range(1500))
    assert np.flatnonzero(both[1]).tolist() == [0, 1]


def test_top_k_without_top_p_keeps_tokens_too_light_to_move_the_sum():
    assert kept([0.0, -60.0, -61.0, -62.0], top_k=3) == {0, 1, 2}


def test_fewer_tokens_left_than_top_k():
    assert kept([-math.inf, 1.0, -math.inf, 0.0], top_k=3) == {1, 3}


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-6, 1e-3, 0.01])
def test_tiny_temperatures_concentrate_without_overflow(temperature):
    extreme = [3.0e38, -3.0e38, 2.9e38, -math.inf]
    expected = [[1, 0, 0, 0]]
    for filters in ({}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}):
        params = SamplingParams(temperature=temperature, **filters)
        np.testing.assert_array_equal(probabilities([extreme], params), expected)


grid = st.integers(-24, 24).map(lambda n: n / 4)
settings_of_a_row = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0.1, 4.0),
        "top_k": st.integers(0, 12),
        "top_p": st.floats(0.01, 1.0),
        "min_p": st.floats(0.0, 1.0),
        "repetition_penalty": st.sampled_from([0.5, 2.0]),
        "frequency_penalty": st.sampled_from([-0.5, 0.25, 1.0]),
        "presence_penalty": st.sampled_from([-1.0, 0.5]),
        "logit_bias": st.dictionaries(st.integers(0, 9), st.sampled_from([-100.0, -0.25, 4.0])),
        "allowed_token_ids": st.sets(st.integers(0, 9), min_size=1),
    },
)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.lists(grid, min_size=10, max_size=10),
            settings_of_a_row,
            st.lists(st.integers(0, 9), max_size=4),
            st.lists(st.integers(0, 9), max_size=4),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_batched_chain_equals_the_plain_one(rows):
    logits = [values for values, *_ in rows]
    states = [row(prompt, outputs, **params) for _, params, prompt, outputs in rows]
    assume(all(margin(x, r) > 1e-9 for x, r in zip(logits, states, strict=True)))
    scores = edited_logits(torch.tensor(logits, dtype=torch.float32), states)
    actual = probabilities(scores, *(r.params for r in states))
    for i, r in enumerate(states):
        np.testing.assert_allclose(actual[i], distribution(logits[i], r), rtol=1e-12, atol=1e-15)
