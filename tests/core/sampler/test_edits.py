"""Bias, allowed ids, early stops and penalties, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baseboard.runtime.sampler import Sampler, edited_logits
from baseboard.runtime.sampling_rows import TokenCounts
from core.sampler.oracle import row

LOGITS = [4.0, -2.0, 0.0, 1.0, 3.0]
NONE = -math.inf


def edited(*rows):
    return edited_logits(torch.tensor([LOGITS] * len(rows)), rows).tolist()


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        # prompt 0 1, output 1 1 3
        ({"repetition_penalty": 2.0}, [2.0, -4.0, 0.0, 0.5, 3.0]),
        ({"repetition_penalty": 0.5}, [8.0, -1.0, 0.0, 2.0, 3.0]),
        ({"presence_penalty": 0.5}, [4.0, -2.5, 0.0, 0.5, 3.0]),
        ({"frequency_penalty": 0.5}, [4.0, -3.0, 0.0, 0.5, 3.0]),
        ({"frequency_penalty": -1.0}, [4.0, 0.0, 0.0, 2.0, 3.0]),
        # first the repetition penalty, then what is subtracted: -2 * 2 - 2 * 0.5 - 1
        (
            {"repetition_penalty": 2.0, "frequency_penalty": 0.5, "presence_penalty": 1.0},
            [2.0, -6.0, 0.0, -1.0, 3.0],
        ),
        ({"logit_bias": {2: 1.5, 0: -100.0}}, [-96.0, -2.0, 1.5, 1.0, 3.0]),
        ({"allowed_token_ids": [1, 4, 4]}, [NONE, -2.0, NONE, NONE, 3.0]),
        # bias comes before the penalties: (-2 + 3) / 2, and does not bring back what is not allowed
        (
            {"logit_bias": {1: 3.0, 0: 9.0}, "repetition_penalty": 2.0, "allowed_token_ids": [1, 2]},
            [NONE, 0.5, 0.0, NONE, NONE],
        ),
        ({"min_tokens": 4}, [NONE, -2.0, 0.0, 1.0, NONE]),
        ({"min_tokens": 3}, LOGITS),
    ],
)
def test_edited_logits_by_hand(params, expected):
    plain = row()
    assert edited(plain, row([0, 1], [1, 1, 3], stop_ids=(0, 4), **params), plain) == [LOGITS, expected, LOGITS]


def test_stops_are_forbidden_until_min_tokens_were_generated():
    held = row(stop_ids=(0,), min_tokens=2, temperature=0.0)
    tokens = []
    for _ in range(3):
        (token,) = Sampler().sample(torch.tensor([LOGITS]), [held]).token_ids
        held.append(token)
        tokens.append(token)
    assert tokens == [4, 4, 0]


def test_frequency_penalty_grows_with_every_token():
    held = row(frequency_penalty=1.0, temperature=0.0)
    tokens = []
    for _ in range(5):
        (token,) = Sampler().sample(torch.tensor([[4.0, 2.5, 1.75]]), [held]).token_ids
        held.append(token)
        tokens.append(token)
    assert tokens == [0, 0, 1, 0, 2]  # 4 3 | 2.5 against 2 | 2 | 1.75 against 1.5 and 1


def test_counts_are_held_only_for_requests_with_penalties():
    assert row().penalised is None
    assert row(temperature=0.0, logit_bias={1: 1.0}).penalised is None
    assert row(presence_penalty=0.1).penalised is not None


def test_the_prompt_is_counted_only_for_the_repetition_penalty():
    assert row([1, 2, 3], [3], presence_penalty=0.1).penalised.ids.tolist() == [3]
    assert sorted(row([1, 2, 3], [3], repetition_penalty=1.1).penalised.ids.tolist()) == [1, 2, 3]


@given(
    prompt=st.lists(st.integers(0, 10**6), max_size=20),
    first=st.lists(st.integers(0, 60), max_size=60),
    later=st.lists(st.integers(0, 60), max_size=60),
)
def test_counts_kept_step_by_step_equal_counting_anew(prompt, first, later):
    held = row(prompt or [5], first, repetition_penalty=2.0)
    for token in later:
        held.append(token)
    tokens = first + later
    expected = {token: tokens.count(token) for token in [*(prompt or [5]), *tokens]}
    actual = dict(zip(held.penalised.ids.tolist(), held.penalised.counts.tolist(), strict=True))
    assert actual == expected
    assert held.num_outputs == len(tokens)


def test_token_counts_start_empty():
    counts = TokenCounts(())
    assert len(counts.ids) == len(counts.counts) == 0
    assert edited(row(presence_penalty=1.0)) == [LOGITS]
