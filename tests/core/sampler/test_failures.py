"""Broken logits and ids outside the vocabulary touch their own row only. Scenario 97 at the sampler."""

from __future__ import annotations

import math

import pytest
import torch

from baseboard.runtime.sampler import Sampler
from core.sampler.oracle import row

V = 97
GREEDY = {"temperature": 0.0}
KINDS = [
    GREEDY,
    {},
    {"top_k": 3},
    {"top_p": 0.5},
    {"top_k": 3, "top_p": 0.5, "min_p": 0.1},
    {"repetition_penalty": 2.0},
]


def logits(rows: int) -> torch.Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("value", "reason"), [(math.nan, "contain NaN"), (math.inf, "contain infinity")], ids=["nan", "inf"]
)
def test_a_row_with_broken_logits_fails_alone(kind, value, reason):
    table = logits(3)
    rows = [row(seed=i, logprobs=1, **kind) for i in range(3)]
    whole = Sampler().sample(table, rows)
    table[1, 40] = value
    result = Sampler().sample(table, rows)
    assert result.token_ids == (whole.token_ids[0], None, whole.token_ids[2])
    assert result.failed.keys() == {1}
    assert reason in result.failed[1]
    assert result.logprobs == {i: whole.logprobs[i] for i in (0, 2)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_with_nothing_left_to_sample_fails_alone(kind):
    table = logits(4)
    table[2] = -math.inf
    rows = [row(**kind), row(allowed_token_ids=[5], min_tokens=1, stop_ids=[5], **kind), row(**kind), row(**GREEDY)]
    result = Sampler().sample(table, rows)
    assert "allowed_token_ids, min_tokens" in result.failed[1]
    assert "every token the logit -inf" in result.failed[2]
    assert result.token_ids[1:3] == (None, None)
    assert result.token_ids[0] is not None
    assert result.token_ids[3] == int(table[3].argmax())


def test_nan_is_reported_even_where_a_mask_hides_it():
    table = logits(1)
    table[0, 40] = math.nan
    assert "NaN" in Sampler().sample(table, [row(allowed_token_ids=[1], **GREEDY)]).failed[0]


@pytest.mark.parametrize(
    "params",
    [
        {"logit_bias": {V: 50.0, V + 1: 50.0}},
        {"logit_bias": dict.fromkeys(range(V, V + 101), 50.0)},
        {"min_tokens": 3, "stop_ids": [V, -1, 10**12]},
        {"allowed_token_ids": [V, 3]},
        {"repetition_penalty": 5.0},
        {"presence_penalty": 2.0, "frequency_penalty": 2.0},
    ],
)
def test_ids_outside_the_vocabulary_reach_no_neighbour(params):
    table = logits(3)
    expected = table.argmax(-1).tolist()
    odd = row([V - 1, V], [V, V + 1, -1], **GREEDY | params)
    odd.append(V)
    result = Sampler().sample(table, [row(**GREEDY), odd, row(**GREEDY)])
    assert (result.token_ids[0], result.token_ids[2]) == (expected[0], expected[2])
    assert result.token_ids[1] == (3 if "allowed_token_ids" in params else expected[1])
    assert not result.failed


def test_a_bias_below_zero_by_id_changes_nothing():
    table = logits(2)
    odd = row(**GREEDY, logit_bias={0: 100.0})
    odd.bias.ids[:] = -1  # validation bypassed: such an id is refused at submit
    assert Sampler().sample(table, [row(**GREEDY), odd]).token_ids == tuple(table.argmax(-1).tolist())


def test_only_ids_outside_the_vocabulary_allowed():
    assert "no token is left" in Sampler().sample(logits(1), [row(allowed_token_ids=[V], **GREEDY)]).failed[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_float_types_are_accepted(dtype):
    table = logits(2).to(dtype)
    result = Sampler().sample(table, [row(**GREEDY), row(top_k=1)])
    assert result.token_ids == tuple(table.float().argmax(-1).tolist())


def test_no_rows():
    result = Sampler().sample(torch.empty(0, V), [])
    assert result.token_ids == ()


@pytest.mark.parametrize("shape", [(2, V), (V,), (1, 1, V)])
def test_rows_that_do_not_fit_the_logits(shape):
    with pytest.raises(ValueError, match=r"do not fit 1 rows"):
        Sampler().sample(torch.zeros(shape), [row()])


@pytest.mark.parametrize("kind", KINDS)
def test_how_many_values_are_no_numbers_is_counted_row_by_row(kind):
    """Row 50. Infinity is a number here; a row that is well is not looked at, and not listed."""
    table = logits(5)
    table[1, [3, 40, 96]] = math.nan
    table[2, 7] = math.inf
    table[3] = math.nan
    table[4, 0] = -math.inf
    result = Sampler().sample(table, [row(seed=i, **kind) for i in range(5)])
    assert result.num_nans == {1: 3, 3: V}
    assert result.failed.keys() == {1, 2, 3}


def test_numbers_that_are_none_are_counted_behind_a_mask_too():
    table = logits(1)
    table[0, [40, 41]] = math.nan
    assert Sampler().sample(table, [row(allowed_token_ids=[1], **GREEDY)]).num_nans == {0: 2}
    assert Sampler().sample(logits(1), [row(**GREEDY)]).num_nans == {}
