"""Fused operators against float64."""

from __future__ import annotations

import pytest
import torch

EPS = {"float32": 1e-6, "bfloat16": 2**-7, "float16": 2**-10}


def close(got: torch.Tensor, truth: torch.Tensor, dtype: str) -> None:
    assert got.dtype == getattr(torch, dtype)
    assert got.shape == truth.shape
    limit = EPS[dtype] * truth.abs().clamp(min=truth.abs().mean().item())
    assert ((got.double() - truth).abs() <= 2 * limit).all()


def random(*shape: int, dtype: str, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, dtype))


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("size", [1, 7, 16, 576, 2051])
def test_rms_norm(backend, dtype, size) -> None:
    kernel = backend.operator_kernel("rms_norm", {"eps": 1e-5, "hidden_size": size, "dtype": dtype})
    x, weight = random(2, 37, size, dtype=dtype), random(size, dtype=dtype, seed=1)
    before = x.clone()
    close(kernel(x, weight), norm(x, weight), dtype)
    assert torch.equal(x, before)


def test_rms_norm_of_strided_rows(fastest) -> None:
    kernel = fastest.operator_kernel("rms_norm", {"eps": 1e-5})
    x, weight = random(37, 3 * 48, dtype="bfloat16")[:, 48:96], random(48, dtype="bfloat16")
    close(kernel(x, weight), norm(x, weight), "bfloat16")


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("size", [9, 64, 960])
def test_add_rms_norm(backend, dtype, size) -> None:
    kernel = backend.operator_kernel("add_rms_norm", {"eps": 1e-5})
    x, residual, weight = (random(33, size, dtype=dtype, seed=s) for s in range(3))
    weight, before = weight[0], residual.clone()
    total = x + residual
    y, added = kernel(x, residual, weight)
    assert torch.equal(added, total)
    assert torch.equal(residual, before)
    close(y, norm(total, weight), dtype)


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("size", [5, 32, 1536])
def test_silu_and_mul(backend, dtype, size) -> None:
    kernel = backend.operator_kernel("silu_and_mul", {})
    x = 3 * random(3, 19, 2 * size, dtype=dtype)
    gate, up = x.double().chunk(2, -1)
    close(kernel(x), gate / (1 + (-gate).exp()) * up, dtype)


def test_silu_far_from_zero(backend) -> None:
    kernel = backend.operator_kernel("silu_and_mul", {})
    x = torch.tensor([[-1e4, -100.0, 1e4, 0.0, 1.0, 1.0, 1.0, 1.0]])
    assert torch.allclose(kernel(x), torch.tensor([[0.0, 0.0, 1e4, 0.0]]), atol=1e-30)


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_size", [8, 20, 64])
def test_rotary_embedding(backend, dtype, interleaved, rotary_size) -> None:
    kernel = backend.operator_kernel("rotary_embedding", {"interleaved": interleaved})
    angles = torch.rand(50, rotary_size // 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 6
    table = torch.cat((angles.cos(), angles.sin()), -1).float()
    positions = torch.tensor([3, 0, 49, 7, 7])
    projection = random(5, 7 * 64, dtype=dtype).unflatten(1, (7, 64))
    query, key, _ = projection.split((4, 2, 1), dim=1)
    expected = [turned(x, angles[positions], rotary_size, interleaved) for x in (query, key)]
    untouched = projection.clone()
    got = kernel(query, key, positions, table)
    for tensor, result, truth in zip((query, key), got, expected, strict=True):
        close(result, truth, dtype)
        assert result.shape == tensor.shape
    assert torch.equal(projection, untouched)


def turned(x: torch.Tensor, angles: torch.Tensor, rotary_size: int, interleaved: bool) -> torch.Tensor:
    """Complex numbers times e^(i angle)."""
    wide = x.double()
    part = wide[..., :rotary_size]
    pairs = part.unflatten(-1, (-1, 2)) if interleaved else part.unflatten(-1, (2, -1)).transpose(-1, -2)
    rotated = torch.view_as_real(
        torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles)[:, None]
    )
    back = rotated if interleaved else rotated.transpose(-1, -2)
    return torch.cat((back.flatten(-2), wide[..., rotary_size:]), -1)


def test_an_operator_that_is_not_here_is_none(fastest) -> None:
    assert fastest.operator_kernel("linear", {}) is None
