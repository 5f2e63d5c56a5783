"""The oracle's formula, every intermediate rounded to the model's dtype: the error that no one can avoid."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import AttentionSpec, DType
from baseboard_conformance.numerics import Array, rounded
from baseboard_conformance.oracle import Tensors


def naive_attention(tensors: Tensors, spec: AttentionSpec, seen: NDArray[np.bool_], dtype: DType) -> Array:
    """``[Q, H, Dv]``. Products are summed in float32, as matrix units do, and rounded when they are stored.

    All heads at once, ``[Hkv, H // Hkv, Q, L]``: the query heads of a KV head lie together.
    """
    query, key, value = tensors.query, tensors.key, tensors.value
    grouped = query.reshape(len(query), spec.num_kv_heads, -1, spec.head_size).transpose(1, 2, 0, 3)
    x = _product(grouped, key.transpose(1, 2, 0)[:, None], dtype)
    x = _biased(rounded(x * spec.scale, dtype), spec, _distance(tensors), dtype)
    weights = _weights(np.where(seen, x, -np.inf), spec, dtype)
    mixed = _product(weights, value.transpose(1, 0, 2)[:, None], dtype)
    return mixed.transpose(2, 0, 1, 3).reshape(len(query), spec.num_heads, -1)


def _product(left: Array, right: Array, dtype: DType) -> Array:
    return rounded((left.astype(np.float32) @ right.astype(np.float32)).astype(np.float64), dtype)


def _distance(tensors: Tensors) -> Array:
    """``j - p`` of each query and key, ``[Q, L]``."""
    keys, queries = len(tensors.key), len(tensors.query)
    return (np.arange(keys)[None, :] - np.arange(keys - queries, keys)[:, None]).astype(np.float64)


def _biased(x: Array, spec: AttentionSpec, distance: Array, dtype: DType) -> Array:
    if spec.softcap is not None:
        x = rounded(spec.softcap * rounded(np.tanh(rounded(x / spec.softcap, dtype)), dtype), dtype)
    if spec.alibi_slopes is not None:
        x = rounded(x + rounded(_of_heads(spec.alibi_slopes, spec) * distance, dtype), dtype)
    return x


def _weights(x: Array, spec: AttentionSpec, dtype: DType) -> Array:
    """Softmax with one rounding at the end, as softmax operators do it inside."""
    sinks = _of_heads((-np.inf,) * spec.num_heads if spec.sinks is None else spec.sinks, spec)
    logit = rounded(sinks, dtype)
    top = np.maximum(x.max(axis=-1, keepdims=True), logit)
    top = np.where(np.isfinite(top), top, 0.0)
    weights = np.exp((x - top).astype(np.float32)).astype(np.float64)
    total = weights.sum(axis=-1, keepdims=True) + np.exp(logit - top)
    return rounded(weights / np.where(total > 0, total, 1.0), dtype)


def _of_heads(values: tuple[float, ...], spec: AttentionSpec) -> Array:
    """One number a query head, ``[Hkv, H // Hkv, 1, 1]``."""
    return np.array(values).reshape(spec.num_kv_heads, -1, 1, 1)
