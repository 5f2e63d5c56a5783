"""Log-probabilities and ranks under the model's own distribution. Scenario 98 at the sampler."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch

from baseboard.contract import MAX_LOGPROBS, RankedToken, RequestRejected, SamplingParams
from baseboard.runtime.logprobs import LOWEST_LOGPROB, prompt_logprobs, token_logprobs
from baseboard.runtime.sampler import Sampler
from core.sampler.oracle import row

# Probabilities 1/8 1/2 1/8 1/4: log-probabilities are these numbers, as they sum to 1.
EIGHTHS = [math.log(p) for p in (0.125, 0.5, 0.125, 0.25)]


def approximately(token: int, probability: float, rank: int) -> RankedToken:
    return RankedToken(token, pytest.approx(math.log(probability), rel=1e-6), rank)


def test_ranks_and_order_by_hand():
    (found,) = token_logprobs(torch.tensor([EIGHTHS]), [2], [4])
    assert found.chosen == approximately(2, 0.125, 3)
    assert found.top == (
        approximately(1, 0.5, 1),
        approximately(3, 0.25, 2),
        approximately(0, 0.125, 3),  # 0 and 2 tie: the lower id comes first, both have rank 3
        approximately(2, 0.125, 3),
    )


def test_a_tie_at_the_end_of_the_list_goes_to_the_lower_id():
    (found,) = token_logprobs(torch.tensor([EIGHTHS]), [1], [3])
    assert [token.token_id for token in found.top] == [1, 3, 0]


def test_each_row_gets_as_many_as_it_asked_for():
    found = token_logprobs(torch.tensor([EIGHTHS] * 3), [0, 1, 2], [0, 1, 9])
    assert [len(entry.top) for entry in found] == [0, 1, 4]


def test_equal_logits_share_the_first_rank():
    (found,) = token_logprobs(torch.zeros(1, 6), [4], [3])
    assert found.chosen == approximately(4, 1 / 6, 1)
    assert [(token.token_id, token.rank) for token in found.top] == [(0, 1), (1, 1), (2, 1)]


def test_against_a_float64_log_softmax():
    logits = torch.randn(5, 3000, generator=torch.Generator().manual_seed(0)) * 5
    x = logits.double().numpy()
    expected = x - np.log(np.exp(x).sum(-1, keepdims=True))
    tokens = [0, 17, 2999, 5, 1500]
    for i, found in enumerate(token_logprobs(logits, tokens, [20] * 5)):
        assert found.chosen.logprob == pytest.approx(expected[i, tokens[i]], abs=1e-4)
        assert found.chosen.rank == 1 + (x[i] > x[i, tokens[i]]).sum()
        assert [token.token_id for token in found.top] == np.argsort(-x[i])[:20].tolist()
        assert [token.rank for token in found.top] == list(range(1, 21))


@pytest.mark.parametrize(
    ("params", "num_top"),
    [
        ({"top_p": 0.1, "logprobs": 5}, 4),
        ({"top_k": 1, "logprobs": 2}, 2),
        ({"allowed_token_ids": [2], "logprobs": 3}, 3),
        ({"temperature": 0.01, "logprobs": 1}, 1),
        ({"temperature": 0.0, "logprobs": 0}, 0),
        ({"logit_bias": {0: 100.0}, "repetition_penalty": 2.0, "logprobs": 20}, 4),
    ],
)
def test_filters_do_not_show_in_the_logprobs(params, num_top):
    result = Sampler().sample(torch.tensor([EIGHTHS]), [row(**params)])
    (found,) = result.logprobs.values()
    probabilities = [0.125, 0.5, 0.125, 0.25]
    assert found.chosen.token_id == result.token_ids[0]
    assert found.chosen.logprob == pytest.approx(math.log(probabilities[found.chosen.token_id]), rel=1e-6)
    assert [token.token_id for token in found.top] == [1, 3, 0, 2][:num_top]
    json.dumps(asdict(found), allow_nan=False)


@pytest.mark.parametrize("count", [MAX_LOGPROBS + 1, -1])
def test_more_than_the_limit_is_refused(count):
    with pytest.raises(RequestRejected, match=rf"logprobs={count} .*at (most 20|least 0)"):
        SamplingParams(logprobs=count)


def test_only_rows_that_asked_get_logprobs():
    rows = [row(temperature=0.0), row(temperature=0.0, logprobs=1), row()]
    assert list(Sampler().sample(torch.tensor([EIGHTHS] * 3), rows).logprobs) == [1]


def test_tokens_of_probability_zero_are_left_out_or_clamped():
    logits = torch.tensor([[0.0, -math.inf, 0.0, -math.inf]])
    (found,) = token_logprobs(logits, [3], [4])
    assert found.chosen == RankedToken(3, LOWEST_LOGPROB, 3)
    assert [token.token_id for token in found.top] == [0, 2]
    json.dumps(asdict(found), allow_nan=False)


def test_prompt_positions_speak_of_the_token_that_follows(monkeypatch):
    logits = torch.tensor([EIGHTHS, EIGHTHS[::-1], [0.0] * 4])
    whole = prompt_logprobs(logits, [1, 1, 3], 1)
    assert [entry.chosen for entry in whole] == [
        approximately(1, 0.5, 1),
        approximately(1, 0.125, 3),
        approximately(3, 0.25, 1),
    ]
    assert [entry.top[0].token_id for entry in whole] == [1, 2, 0]
    monkeypatch.setattr("baseboard.runtime.logprobs._ELEMENTS_AT_ONCE", 4)
    assert prompt_logprobs(logits, [1, 1, 3], 1) == whole


def test_prompt_logprobs_of_no_position():
    assert prompt_logprobs(torch.empty(0, 4), [], 3) == ()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("at_once", [1, 4, 8, 100])
def test_broken_prompt_logits_are_named(bad, at_once, monkeypatch):
    monkeypatch.setattr("baseboard.runtime.logprobs._ELEMENTS_AT_ONCE", at_once)
    logits = torch.zeros(4, 4)
    logits[2:, 2] = bad
    with pytest.raises(FloatingPointError, match="prompt position 2"):
        prompt_logprobs(logits, [0, 0, 0, 0], 0)
