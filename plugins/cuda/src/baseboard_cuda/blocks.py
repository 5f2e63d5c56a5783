"""Copying and wiping blocks of a pool: checks on the host, then one launch."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from baseboard.kit.pairs import check_blocks, check_copy_pairs
from baseboard_cuda.cache import PooledKVCache
from baseboard_cuda.kernels import blocks as kernels
from baseboard_cuda.launching import on_grid
from baseboard_cuda.metadata import Upload

_TILE: Final = 2048  # words that one program moves
_WARPS: Final = 8


def copy_blocks(cache: PooledKVCache, pairs: NDArray[np.int64], upload: Upload) -> None:
    """``pairs`` ``[n, 2]``; ``ValueError`` as :func:`check_copy_pairs` says, before anything is enqueued."""
    _launch(kernels.copy_blocks, cache, check_copy_pairs(pairs, cache.num_blocks), upload)


def zero_blocks(cache: PooledKVCache, blocks: NDArray[np.int64], upload: Upload) -> None:
    """``blocks`` ``[n]``; ``ValueError`` as :func:`check_blocks` says, before anything is enqueued."""
    _launch(kernels.zero_blocks, cache, check_blocks(blocks, cache.num_blocks), upload)


def _launch(kernel: Any, cache: PooledKVCache, ids: NDArray[np.int64], upload: Upload) -> None:
    if not len(ids):
        return
    words = cache.pool.view(torch.int32)
    num_planes, _, block_words = words.shape
    grid = len(ids), triton.cdiv(block_words, _TILE), num_planes
    on_grid(kernel, grid, _WARPS)(words, upload(ids), words.stride(0), block_words, TILE=_TILE)
