"""Fused operators. One program computes one row, or a part of one; everything inside is float32."""

from __future__ import annotations

import triton
import triton.language as tl

from baseboard_cuda.kernels.numbers import LOG2_E


@triton.jit
def rms_norm(out, x, weight, row_stride, eps, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """``out = weight * x / sqrt(mean(x^2) + eps)``. Grid: rows."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED)
    mask = at < SIZE
    values = tl.load(x + row * row_stride + at, mask=mask, other=0.0).to(tl.float32)
    weights = tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / SIZE + eps)
    tl.store(out + row * SIZE + at, (values * scale * weights).to(out.dtype.element_ty), mask=mask)


@triton.jit
def add_rms_norm(
    out, total, x, residual, weight, x_stride, residual_stride, eps, SIZE: tl.constexpr, PADDED: tl.constexpr
):
    """``total = x + residual``, rounded to its dtype; ``out`` is the norm of what was rounded. Grid: rows."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED)
    mask = at < SIZE
    sums = tl.load(x + row * x_stride + at, mask=mask, other=0.0).to(tl.float32)
    sums += tl.load(residual + row * residual_stride + at, mask=mask, other=0.0).to(tl.float32)
    stored = sums.to(total.dtype.element_ty)
    tl.store(total + row * SIZE + at, stored, mask=mask)
    values = stored.to(tl.float32)
    weights = tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / SIZE + eps)
    tl.store(out + row * SIZE + at, (values * scale * weights).to(out.dtype.element_ty), mask=mask)


@triton.jit
def silu_and_mul(out, x, row_stride, SIZE: tl.constexpr, TILE: tl.constexpr):
    """``out = silu(first half) * second half``. Grid: rows, tiles of a row."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = at < SIZE
    gate = tl.load(x + row * row_stride + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x + row * row_stride + SIZE + at, mask=mask, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp2(-gate * LOG2_E)) * up
    tl.store(out + row * SIZE + at, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def rotary_embedding(
    out,
    x,
    positions,
    cos_sin,  # [positions, 2 * HALF]: cosines, then sines
    token_stride,
    head_stride,
    HEAD_SIZE: tl.constexpr,
    HALF: tl.constexpr,  # of the part of a head that is turned
    PADDED_HALF: tl.constexpr,
    PADDED_REST: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Turn pairs of numbers by the position's angles; what is beyond them stays. Grid: tokens, heads.

    Pairs are (i, i + HALF), or neighbours with INTERLEAVED.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    source = x + token * token_stride + head * head_stride
    target = out + (token * tl.num_programs(1) + head) * HEAD_SIZE
    pair = tl.arange(0, PADDED_HALF)
    mask = pair < HALF
    angles = cos_sin + tl.load(positions + token) * (2 * HALF) + pair
    cos = tl.load(angles, mask=mask, other=0.0).to(tl.float32)
    sin = tl.load(angles + HALF, mask=mask, other=0.0).to(tl.float32)
    if INTERLEAVED:
        first = 2 * pair
        second = 2 * pair + 1
    else:
        first = pair
        second = pair + HALF
    a = tl.load(source + first, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(source + second, mask=mask, other=0.0).to(tl.float32)
    tl.store(target + first, (a * cos - b * sin).to(out.dtype.element_ty), mask=mask)
    tl.store(target + second, (b * cos + a * sin).to(out.dtype.element_ty), mask=mask)
    if 2 * HALF < HEAD_SIZE:
        rest = 2 * HALF + tl.arange(0, PADDED_REST)
        tl.store(target + rest, tl.load(source + rest, mask=rest < HEAD_SIZE), mask=rest < HEAD_SIZE)
