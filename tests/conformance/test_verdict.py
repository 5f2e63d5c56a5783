"""What the two bounds catch that a fixed tolerance does not, and what they let pass."""

from __future__ import annotations

import numpy as np
import pytest

from baseboard.contract import AttentionSpec
from baseboard_conformance.naive import naive_attention
from baseboard_conformance.numerics import EPSILON, rounded
from baseboard_conformance.oracle import Tensors, attention, solve, visible
from baseboard_conformance.verdict import Yardstick, judge

LENGTH, SIZE = 4096, 32


@pytest.fixture(scope="module", params=["bfloat16", "float16", "float32"])
def decode(request):
    """One decode over 4,096 keys: tensors, spec, yardstick."""
    rng, dtype = np.random.default_rng(5), request.param
    shapes = ((1, 4, SIZE), (LENGTH, 2, SIZE), (LENGTH, 2, SIZE))
    tensors = Tensors(*(rounded(rng.standard_normal(shape), dtype) for shape in shapes))
    spec = AttentionSpec(4, 2, SIZE, SIZE**-0.5)
    seen = visible(1, LENGTH, None, causal=True)
    truth = attention(tensors, spec, seen)
    return tensors, spec, Yardstick(truth, naive_attention(tensors, spec, seen, dtype), dtype)


def without(decode, dropped):
    tensors, spec, against = decode
    seen = visible(1, LENGTH, None, causal=True)
    seen[:, dropped] = False
    return rounded(attention(tensors, spec, seen), against.dtype)


def test_the_exact_result_passes(decode) -> None:
    _, _, against = decode
    assert judge(rounded(against.truth, against.dtype), against).passed


def test_the_naive_result_passes(decode) -> None:
    _, _, against = decode
    assert judge(against.naive, against).worst <= 0.5001  # it is the yardstick: half of what is allowed


@pytest.mark.parametrize("block", [slice(0, 16), slice(4080, 4096), slice(2000, 2016)])
def test_a_dropped_block_fails_and_a_fixed_tolerance_lets_it_pass(decode, block) -> None:
    _, _, against = decode
    wrong = without(decode, block)
    assert np.allclose(wrong, against.truth, atol=1e-2, rtol=1e-2)
    assert not judge(wrong, against).passed


def test_a_dropped_token_fails(decode) -> None:
    _, _, against = decode
    # One of 4,096 random keys may be less than bfloat16 resolves: this is what the needle inputs are there for.
    heaviest = np.abs(without(decode, 1) - against.truth).max()
    resolved = heaviest > judge(against.naive, against).allowed
    assert judge(without(decode, 1), against).passed is not resolved or against.dtype == "bfloat16"
    assert resolved or against.dtype == "bfloat16"


def test_one_zeroed_element_fails(decode) -> None:
    _, _, against = decode
    wrong = against.naive.copy()
    wrong[0, 1, np.abs(against.truth[0, 1]).argmax()] = 0
    assert not judge(wrong, against).passed


def test_a_scale_of_two_percent_fails(decode) -> None:
    tensors, spec, against = decode
    scaled = AttentionSpec(4, 2, SIZE, 1.02 * spec.scale)
    assert not judge(attention(tensors, scaled, visible(1, LENGTH, None, causal=True)), against).passed


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_infinitely_wrong(value) -> None:
    truth = np.ones((2, 1, 3))
    got = truth.copy()
    got[1, 0, 2] = value
    measure = judge(got, Yardstick(truth, truth, "float32"))
    assert (measure.ratio, measure.token, measure.head, measure.passed) == (np.inf, 1, 0, False)
    assert measure.as_dict()["ratio"] == 1e300


def test_a_row_that_is_zero_allows_nothing() -> None:
    truth = np.zeros((1, 1, 4))
    assert judge(truth, Yardstick(truth, truth, "float16")).passed
    assert not judge(truth + 1e-30, Yardstick(truth, truth, "float16")).passed


def test_float32_allows_what_large_logits_cost() -> None:
    truth = np.ones((1, 1, 4))
    got = truth * (1 + 100 * 2.0**-23)
    assert not judge(got, Yardstick(truth, truth, "float32")).passed
    assert judge(got, Yardstick(truth, truth, "float32", largest_logit=150.0)).passed
    assert not judge(truth * (1 + 4 * 2.0**-7), Yardstick(truth, truth, "bfloat16", largest_logit=150.0)).passed


def test_where_terms_cancel_an_error_is_measured_against_the_terms() -> None:
    """0.5 x 1 + 0.5 x -0.999 is 0.0005: two right results differ by half of it, and a wrong one is still found."""
    tensors = Tensors(np.zeros((1, 1, 1)), np.zeros((2, 1, 1)), np.array([[[1.0]], [[-0.999]]]))
    solved = solve(tensors, AttentionSpec(1, 1, 1, 1.0), visible(1, 2, None, causal=True))
    assert solved.out[0, 0, 0] == pytest.approx(0.0005)
    assert solved.spread[0, 0, 0] == pytest.approx(np.hypot(0.5, 0.4995))
    rounding = 0.3 * EPSILON["float16"]
    lucky = Yardstick(solved.out, solved.out, "float16", spread=solved.spread)
    assert judge(solved.out + rounding, lucky).row_ratio == pytest.approx(0.3 / 2 / np.hypot(0.5, 0.4995))
    assert judge(solved.out + rounding, Yardstick(solved.out, solved.out, "float16")).row_ratio > 100
    assert not judge(np.full((1, 1, 1), 0.5), lucky).passed
