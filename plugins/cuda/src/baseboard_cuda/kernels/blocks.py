"""Moving and wiping whole blocks in all layers with one launch.

The layers' planes lie one behind the other in one pool, so block ``b`` of plane ``p`` begins at word
``p * plane_stride + b * block_words``. A word is 4 bytes: blocks are padded to whole words.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_blocks(pool, pairs, plane_stride, block_words, TILE: tl.constexpr):
    """``pairs`` int64 ``[n, 2]`` (source, destination). Grid: pairs, tiles of a block, planes."""
    pair = tl.program_id(0).to(tl.int64)
    words = tl.program_id(1) * TILE + tl.arange(0, TILE)
    plane = pool + tl.program_id(2).to(tl.int64) * plane_stride
    source = tl.load(pairs + pair * 2) * block_words
    destination = tl.load(pairs + pair * 2 + 1) * block_words
    mask = words < block_words
    tl.store(plane + destination + words, tl.load(plane + source + words, mask=mask), mask=mask)


@triton.jit
def zero_blocks(pool, blocks, plane_stride, block_words, TILE: tl.constexpr):
    """``blocks`` int64 ``[n]``. Grid: blocks, tiles of a block, planes."""
    words = tl.program_id(1) * TILE + tl.arange(0, TILE)
    plane = pool + tl.program_id(2).to(tl.int64) * plane_stride
    begin = tl.load(blocks + tl.program_id(0)) * block_words
    tl.store(plane + begin + words, tl.zeros([TILE], tl.int32), mask=words < block_words)
