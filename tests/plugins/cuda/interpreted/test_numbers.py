"""FP8 by integers, against torch's own FP8."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from baseboard_cuda.kernels.numbers import exp_of_negative, from_e4m3, tanh, to_e4m3

ALL = torch.arange(256, dtype=torch.uint8)


@triton.jit
def decode(out, codes, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, from_e4m3(tl.load(codes + at)))


@triton.jit
def encode(out, x, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, to_e4m3(tl.load(x + at)))


@triton.jit
def tangent(out, x, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tanh(tl.load(x + at)))


@triton.jit
def exponential(out, x, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, exp_of_negative(tl.load(x + at)))


def encoded(x: torch.Tensor) -> torch.Tensor:
    padded = torch.zeros(triton.next_power_of_2(len(x)))
    padded[: len(x)] = x
    out = torch.zeros(len(padded), dtype=torch.uint8)
    encode[(1,)](out, padded, N=len(padded))
    return out[: len(x)]


def test_every_code_is_decoded_exactly() -> None:
    out = torch.zeros(256, dtype=torch.float16)
    decode[(1,)](out, ALL, N=256)
    expected = ALL.view(torch.float8_e4m3fn).float() / 256
    assert torch.equal(out.float().nan_to_num(nan=9e9), expected.nan_to_num(nan=9e9))


def test_every_number_comes_back() -> None:
    values = ALL.view(torch.float8_e4m3fn).float()
    numbers = ~values.isnan()
    assert torch.equal(encoded(values)[numbers], ALL[numbers])


def test_rounding_is_to_the_nearest_and_ties_to_even() -> None:
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (codes[1:] + codes[:-1]) / 2
    near = torch.cat([middles, middles * (1 + 1e-6), middles * (1 - 1e-6)])
    spread = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * 10 ** torch.linspace(-4, 2.4, 4096)
    for x in (near, -near, spread.clamp(-448, 448)):
        assert torch.equal(encoded(x), x.to(torch.float8_e4m3fn).view(torch.uint8))


def test_beyond_the_largest_number() -> None:
    x = torch.tensor([449.0, 1e9, torch.inf, -500.0, -torch.inf, torch.nan])
    got = encoded(x).view(torch.float8_e4m3fn).float()
    assert got[:5].tolist() == [448.0, 448.0, 448.0, -448.0, -448.0]
    assert got[5].isnan()


def computed(kernel, x: torch.Tensor) -> np.ndarray:
    padded = torch.zeros(triton.next_power_of_2(len(x)))
    padded[: len(x)] = x
    out = torch.zeros(len(padded))
    kernel[(1,)](out, padded, N=len(padded))
    return out[: len(x)].double().numpy()


def test_the_hyperbolic_tangent() -> None:
    size = torch.cat([torch.linspace(0, 12, 2000), 10 ** torch.linspace(-30, 4, 500)])
    x = torch.cat([size, -size])
    expected = np.tanh(x.double().numpy())
    assert (np.abs(computed(tangent, x) - expected) <= 3 * 2.0**-24 * np.abs(expected)).all()
    assert np.isnan(computed(tangent, torch.tensor([torch.nan]))).all()


def test_the_exponential_function() -> None:
    x = -torch.cat([torch.linspace(0, 86, 4000), 10 ** torch.linspace(-30, 1, 500)])
    expected = np.exp(x.double().numpy())
    assert (np.abs(computed(exponential, x) - expected) <= 3 * 2.0**-24 * expected).all()
    assert computed(exponential, torch.tensor([-88.0, -1e30, -torch.inf])).tolist() == [0, 0, 0]
    assert np.isnan(computed(exponential, torch.tensor([torch.nan]))).all()
