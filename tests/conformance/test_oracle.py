"""The oracle against the contract's formula done one number at a time, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from baseboard.contract import AttentionSpec
from baseboard_conformance.naive import naive_attention
from baseboard_conformance.numerics import EPSILON, rounded
from baseboard_conformance.oracle import Tensors, attention, largest_logit, visible


def by_hand(tensors, spec, causal=True):
    """No array arithmetic, no maximum taken off."""
    count, length = len(tensors.query), len(tensors.key)
    out = np.zeros((count, spec.num_heads, tensors.value.shape[2]))
    for i in range(count):
        p = length - count + i
        for h in range(spec.num_heads):
            g = h // (spec.num_heads // spec.num_kv_heads)
            total, result = (math.exp(spec.sinks[h]) if spec.sinks else 0.0), np.zeros(out.shape[2])
            for j in range(length):
                if (causal and j > p) or (spec.sliding_window is not None and j <= p - spec.sliding_window):
                    continue
                x = spec.scale * sum(a * b for a, b in zip(tensors.query[i, h], tensors.key[j, g], strict=True))
                if spec.softcap is not None:
                    x = spec.softcap * math.tanh(x / spec.softcap)
                if spec.alibi_slopes is not None:
                    x += spec.alibi_slopes[h] * (j - p)
                total += math.exp(x)
                result += math.exp(x) * tensors.value[j, g]
            out[i, h] = result / total if total else 0.0
    return out


def make(count=3, length=9, heads=4, kv_heads=2, size=5, seed=0):
    rng = np.random.default_rng(seed)
    return Tensors(
        rng.standard_normal((count, heads, size)),
        rng.standard_normal((length, kv_heads, size)),
        rng.standard_normal((length, kv_heads, size + 1)),
    )


OPTIONS = [
    {},
    {"sliding_window": 4},
    {"sliding_window": 1},
    {"softcap": 0.7},
    {"alibi_slopes": (0.5, 0.25, 0.3, 0.1)},
    {"sinks": (0.0, 1.0, -2.0, 3.0)},
    {"sliding_window": 2, "sinks": (0.0, 1.0, -2.0, 3.0), "softcap": 2.0, "alibi_slopes": (0.5, 0.25, 0.3, 0.1)},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("causal", [True, False])
def test_it_is_the_formula(options, causal) -> None:
    tensors, spec = make(), AttentionSpec(4, 2, 5, 0.4, **options)
    seen = visible(3, 9, spec.sliding_window, causal)
    np.testing.assert_allclose(attention(tensors, spec, seen), by_hand(tensors, spec, causal), rtol=1e-12, atol=1e-14)


def test_uniform_weights_average_the_visible_values() -> None:
    value = np.arange(1.0, 5.0).reshape(4, 1, 1)
    tensors = Tensors(np.ones((2, 1, 1)), np.zeros((4, 1, 1)), value)
    got = attention(tensors, AttentionSpec(1, 1, 1, 1.0), visible(2, 4, None, causal=True))
    np.testing.assert_allclose(got[:, 0, 0], [2.0, 2.5])  # (1+2+3)/3, (1+2+3+4)/4
    windowed = attention(tensors, AttentionSpec(1, 1, 1, 1.0), visible(2, 4, 2, causal=True))
    np.testing.assert_allclose(windowed[:, 0, 0], [2.5, 3.5])


def test_a_sink_takes_its_share() -> None:
    tensors = Tensors(np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), np.full((1, 1, 1), 6.0))
    got = attention(tensors, AttentionSpec(1, 1, 1, 1.0, sinks=(math.log(2.0),)), visible(1, 1, None, causal=True))
    assert got[0, 0, 0] == pytest.approx(2.0)  # 6 / (1 + 2)


def test_a_row_that_sees_nothing_gives_zeros() -> None:
    tensors = make()
    got = attention(tensors, AttentionSpec(4, 2, 5, 0.4), np.zeros((3, 9), bool))
    assert not got.any()


def test_logits_of_thousands_stay_finite() -> None:
    tensors = Tensors(np.full((1, 1, 1), 1e3), np.array([[[1.0]], [[2.0]]]), np.array([[[5.0]], [[7.0]]]))
    spec = AttentionSpec(1, 1, 1, 1.0)
    assert attention(tensors, spec, visible(1, 2, None, causal=True))[0, 0, 0] == 7.0
    assert largest_logit(tensors, spec) == 2000.0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rounding_is_torchs(dtype) -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [rng.standard_normal(4000), 1e-6 * rng.standard_normal(500), [0.0, 1.00390625, 1e9, np.inf]]
    )
    theirs = torch.from_numpy(values).float().to(getattr(torch, dtype)).double().numpy()
    np.testing.assert_array_equal(rounded(values, dtype), theirs)
    assert np.isnan(rounded(np.array([np.nan]), dtype)).all()
    assert EPSILON[dtype] == torch.finfo(getattr(torch, dtype)).eps


@pytest.mark.parametrize("options", [options for options in OPTIONS if options.get("sliding_window") != 1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_naive_computation_is_as_good_as_its_dtype(options, dtype) -> None:
    tensors = Tensors(*(rounded(x, dtype) for x in (make().query, make().key, make().value)))
    spec = AttentionSpec(4, 2, 5, 0.4, **options)
    seen = visible(3, 9, spec.sliding_window, causal=True)
    error = np.abs(naive_attention(tensors, spec, seen, dtype) - attention(tensors, spec, seen)).max()
    assert 0 < error < 12 * EPSILON[dtype]
