"""Fused operators against their formulas in float64."""

from __future__ import annotations

import pytest
import torch

EPS = 1e-5
TOLERANCE = {torch.float32: 4e-7, torch.float16: 1.1e-3}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16])


def close(got: torch.Tensor, truth: torch.Tensor) -> None:
    assert got.shape == truth.shape
    assert (got.double() - truth).abs().max() <= TOLERANCE[got.dtype] * truth.abs().max()


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@DTYPES
@pytest.mark.parametrize("shape", [(5, 96), (2, 3, 576), (0, 96), (1, 1)])
def test_rms_norm(backend, dtype, shape) -> None:
    size = shape[-1]
    kernel = backend.operator_kernel("rms_norm", {"hidden_size": size, "dtype": str(dtype), "eps": EPS})
    x, weight = random(*shape, dtype=dtype), random(size, dtype=dtype, seed=1)
    before = x.clone()
    got = kernel(x, weight)
    assert got.shape == x.shape
    assert torch.equal(x, before)
    if x.numel():
        close(got, norm(x, weight))
        other = backend.operator_kernel("rms_norm", {"hidden_size": size, "dtype": str(dtype), "eps": 0.5})
        close(other(x, weight), norm(x, weight, 0.5))


@DTYPES
def test_rms_norm_of_a_part_of_a_wider_tensor(backend, dtype) -> None:
    wide, weight = random(4, 200, dtype=dtype), random(96, dtype=dtype, seed=1)
    kernel = backend.operator_kernel("rms_norm", {"hidden_size": 96, "dtype": str(dtype), "eps": EPS})
    close(kernel(wide[:, 50:146], weight), norm(wide[:, 50:146], weight))


@DTYPES
def test_add_rms_norm(backend, dtype) -> None:
    kernel = backend.operator_kernel("add_rms_norm", {"hidden_size": 96, "dtype": str(dtype), "eps": EPS})
    x, residual, weight = (random(5, 96, dtype=dtype, seed=s) for s in (0, 1, 2))
    weight = weight[0]
    got, total = kernel(x, residual, weight)
    assert torch.equal(total, x + residual)
    close(got, norm(total, weight))


@DTYPES
@pytest.mark.parametrize("size", [1, 96, 1500])
def test_silu_and_mul(backend, dtype, size) -> None:
    x = random(3, 2 * size, dtype=dtype) * 4
    gate, up = x.double().chunk(2, -1)
    close(backend.operator_kernel("silu_and_mul", {"dtype": str(dtype)})(x), gate * gate.sigmoid() * up)


@DTYPES
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("rotary_dim", [16, 10])
def test_rotary_embedding(backend, dtype, interleaved, rotary_dim) -> None:
    spec = {"rotary_dim": rotary_dim, "interleaved": interleaved, "dtype": str(dtype)}
    query, key = random(4, 6, 16, dtype=dtype), random(4, 40, dtype=dtype, seed=1)[:, 4:36].view(4, 2, 16)
    positions = torch.tensor([7, 0, 31, 8])
    angles = torch.arange(32)[:, None] * 10000.0 ** (-torch.arange(rotary_dim // 2) / (rotary_dim // 2))
    cos_sin = torch.cat([angles.cos(), angles.sin()], -1)
    got = backend.operator_kernel("rotary_embedding", spec)(query, key, positions, cos_sin)
    for result, x in zip(got, (query, key), strict=True):
        close(result, turned(x, angles[positions], interleaved))


def turned(x: torch.Tensor, angles: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """As a product of complex numbers."""
    out = x.double().clone()
    half = angles.shape[-1]
    places = (
        [torch.arange(half) * 2, torch.arange(half) * 2 + 1]
        if interleaved
        else [torch.arange(half), torch.arange(half) + half]
    )
    number = torch.complex(out[..., places[0]], out[..., places[1]])
    number *= torch.polar(torch.ones_like(angles, dtype=torch.float64), angles.double())[:, None]
    out[..., places[0]], out[..., places[1]] = number.real, number.imag
    return out


def test_what_is_not_offered(backend) -> None:
    assert backend.operator_kernel("linear", {}) is None
    assert backend.operator_kernel("rms_norm", {"hidden_size": 32768, "dtype": "float16", "eps": EPS}) is None
