"""The operators' formulas against torch's own modules in float64, and complex numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baseboard_conformance.operator_formulas import FORMULAS

RNG = np.random.default_rng(3)
X, RESIDUAL, WEIGHT = RNG.standard_normal((5, 12)), RNG.standard_normal((5, 12)), RNG.standard_normal(12)


def call(name, spec, *arguments):
    return FORMULAS[name](lambda values: values, spec, arguments)


def rms_norm(x):
    norm = torch.nn.RMSNorm(12, eps=0.25, dtype=torch.float64)
    norm.weight.data = torch.from_numpy(WEIGHT)
    return norm(torch.from_numpy(x)).detach().numpy()


def test_the_norms() -> None:
    spec = {"hidden_size": 12, "eps": 0.25}
    (got,) = call("rms_norm", spec, X, WEIGHT)
    np.testing.assert_allclose(got, rms_norm(X), rtol=1e-12)
    got, total = call("add_rms_norm", spec, X, RESIDUAL, WEIGHT)
    np.testing.assert_array_equal(total, X + RESIDUAL)
    np.testing.assert_allclose(got, rms_norm(X + RESIDUAL), rtol=1e-12)


def test_the_gate() -> None:
    (got,) = call("silu_and_mul", {}, X)
    gate, up = torch.from_numpy(X).chunk(2, -1)
    np.testing.assert_allclose(got, (torch.nn.functional.silu(gate) * up).numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    ("interleaved", "first", "second"), [(True, [0, 2, 4], [1, 3, 5]), (False, [0, 1, 2], [3, 4, 5])]
)
def test_the_rotary_embedding_is_a_product_of_complex_numbers(interleaved, first, second) -> None:
    angles = RNG.uniform(0, 6, (9, 3))
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)
    query, key, positions = RNG.standard_normal((4, 3, 8)), RNG.standard_normal((4, 1, 8)), np.array([8, 0, 3, 3])
    results = call("rotary_embedding", {"rotary_dim": 6, "interleaved": interleaved}, query, key, positions, table)
    for got, x in zip(results, (query, key), strict=True):
        turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles[positions])[:, None]
        np.testing.assert_allclose(got[..., first], turned.real, atol=1e-12)
        np.testing.assert_allclose(got[..., second], turned.imag, atol=1e-12)
        np.testing.assert_array_equal(got[..., 6:], x[..., 6:])


def test_every_intermediate_is_rounded() -> None:
    (got,) = FORMULAS["silu_and_mul"](lambda values: np.round(values, 1), {}, [np.array([[1.0, 2.0]])])
    assert got == [[1.4]]  # silu(1) = 0.731 -> 0.7; times 2
