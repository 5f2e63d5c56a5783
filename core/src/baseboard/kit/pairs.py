"""Checks of block ids on the host, before anything is enqueued. NumPy only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def check_blocks(blocks: NDArray[Any], num_blocks: int) -> NDArray[np.int64]:
    """``blocks`` ``[n]`` as int64. ``ValueError`` naming the ids that are not in ``[0, num_blocks)``."""
    ids = _integers(blocks, "blocks")
    if ids.ndim != 1:
        raise ValueError(f"blocks must have shape [n], not {list(ids.shape)}")
    _check_range(ids, num_blocks, "block")
    return ids


def check_copy_pairs(pairs: NDArray[Any], num_blocks: int) -> NDArray[np.int64]:
    """``pairs`` ``[n, 2]`` (source, destination) within one pool as int64.

    ``ValueError`` naming the ids that are out of range, are destinations twice, or are source and destination: the
    moves of one list have no order, so such a list has no meaning.
    """
    ids = check_swap_pairs(pairs, num_blocks, num_blocks)
    both = np.intersect1d(ids[:, 0], ids[:, 1])
    if both.size:
        raise ValueError(f"blocks {_some(both)} are both source and destination: copy them in separate calls")
    return ids


def check_swap_pairs(pairs: NDArray[Any], num_source: int, num_destination: int) -> NDArray[np.int64]:
    """``pairs`` ``[n, 2]`` (source, destination) between two pools as int64.

    ``ValueError`` naming the ids that are out of range in their pool, or are destinations twice.
    """
    ids = _integers(pairs, "pairs")
    if not ids.size:
        return ids.reshape(0, 2)
    if ids.ndim != 2 or ids.shape[1] != 2:
        raise ValueError(f"pairs must have shape [n, 2], not {list(ids.shape)}")
    _check_range(ids[:, 0], num_source, "source block")
    _check_range(ids[:, 1], num_destination, "destination block")
    values, counts = np.unique(ids[:, 1], return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"destination blocks {_some(values[counts > 1])} are given more than once")
    return ids


def _integers(values: NDArray[Any], name: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, not {array.dtype}")
    return array.astype(np.int64)


def _check_range(ids: NDArray[np.int64], num_blocks: int, what: str) -> None:
    wrong = ids[(ids < 0) | (ids >= num_blocks)]
    if wrong.size:
        raise ValueError(f"{what} ids {_some(wrong)} are out of range: the pool has blocks 0 to {num_blocks - 1}")


def _some(ids: NDArray[np.int64]) -> str:
    """The first few of ``ids``, for an error message."""
    shown = ", ".join(str(value) for value in ids[:8].tolist())
    return f"[{shown}{', ...' if ids.size > 8 else ''}]"
