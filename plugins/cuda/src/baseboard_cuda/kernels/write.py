"""Storing a step's keys and values in their slots."""

from __future__ import annotations

import triton
import triton.language as tl

from baseboard_cuda.kernels.numbers import E4M3_MAX, to_e4m3


@triton.jit
def _store_rows(
    source,  # pointers, one a row
    target,
    scale_target,
    exists,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    FP8: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Rows from ``source`` to ``target``, rounded to FP8 if asked."""
    columns = tl.arange(0, PADDED)
    mask = exists[:, None] & (columns[None, :] < SIZE)
    x = tl.load(source[:, None] + columns[None, :], mask=mask, other=0.0)
    if FP8:
        x = x.to(tl.float32)
        if SCALED:
            # Each row is stretched to the format's full range. A row of zeros keeps the scale 1, and stays zeros.
            largest = tl.max(tl.abs(x), 1)
            scale = tl.where(largest == 0.0, 1.0, largest / E4M3_MAX)
            x = x / scale[:, None]
            tl.store(scale_target, scale, mask=exists)
        tl.store(target[:, None] + columns[None, :], to_e4m3(x), mask=mask)
    else:
        tl.store(target[:, None] + columns[None, :], x, mask=mask)


@triton.jit(do_not_specialize=["num_tokens"])
def write_kv(
    key,
    value,
    cache,
    scales,
    slot_mapping,
    num_tokens,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    block_stride,
    value_offset,
    key_scale_offset,
    value_scale_offset,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HEAD_SIZE_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    FP8: tl.constexpr,
    SCALED: tl.constexpr,
    TILE_ROWS: tl.constexpr,
):
    """Store ``key`` ``[T, Hkv, D]`` and ``value`` ``[T, Hkv, Dv]``. A row is a head of a token. Grid: tiles of rows.

    Padding tokens share the slots of the null block: whose content ends up there is nobody's business.
    """
    row = tl.program_id(0).to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    token = row // NUM_KV_HEADS
    head = row % NUM_KV_HEADS
    exists = token < num_tokens
    slot = tl.load(slot_mapping + token, mask=exists, other=0)
    block = slot // BLOCK_SIZE
    place = slot % BLOCK_SIZE * NUM_KV_HEADS + head
    at_scale = scales + block * (block_stride // 4) + place
    _store_rows(
        key + token * key_token_stride + head * key_head_stride,
        cache + block * block_stride + place * HEAD_SIZE,
        at_scale + key_scale_offset,
        exists,
        HEAD_SIZE,
        BLOCK_D,
        FP8,
        SCALED,
    )
    _store_rows(
        value + token * value_token_stride + head * value_head_stride,
        cache + block * block_stride + value_offset + place * HEAD_SIZE_V,
        at_scale + value_scale_offset,
        exists,
        HEAD_SIZE_V,
        BLOCK_DV,
        FP8,
        SCALED,
    )
