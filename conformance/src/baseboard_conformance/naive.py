"""The oracle's formula, every intermediate rounded to the model's dtype: the error that no one can avoid."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import AttentionSpec, DType
from baseboard_conformance.numerics import Array, rounded
from baseboard_conformance.oracle import Tensors


def naive_attention(tensors: Tensors, spec: AttentionSpec, seen: NDArray[np.bool_], dtype: DType) -> Array:
    """``[Q, H, Dv]``. Products are summed in float32, as matrix units do, and rounded when they are stored."""
    p = np.arange(len(tensors.key) - len(tensors.query), len(tensors.key))[:, None]
    distance = np.arange(len(tensors.key))[None, :] - p
    out = np.zeros((*tensors.query.shape[:2], tensors.value.shape[2]))
    for h in range(spec.num_heads):
        kv_head = h // (spec.num_heads // spec.num_kv_heads)
        x = _product(tensors.query[:, h], tensors.key[:, kv_head].T, dtype)
        x = _biased(rounded(x * spec.scale, dtype), spec, h, distance, dtype)
        weights = _weights(np.where(seen, x, -np.inf), None if spec.sinks is None else spec.sinks[h], dtype)
        out[:, h] = _product(weights, tensors.value[:, kv_head], dtype)
    return out


def _product(left: Array, right: Array, dtype: DType) -> Array:
    return rounded((left.astype(np.float32) @ right.astype(np.float32)).astype(np.float64), dtype)


def _biased(x: Array, spec: AttentionSpec, head: int, distance: NDArray[np.int64], dtype: DType) -> Array:
    if spec.softcap is not None:
        x = rounded(spec.softcap * rounded(_tanh(rounded(x / spec.softcap, dtype)), dtype), dtype)
    if spec.alibi_slopes is not None:
        bias = spec.alibi_slopes[head] * distance.astype(np.float64)
        x = rounded(x + rounded(bias, dtype), dtype)
    return x


def _tanh(x: Array) -> Array:
    return np.tanh(x)


def _weights(x: Array, sink: float | None, dtype: DType) -> Array:
    """Softmax with one rounding at the end, as softmax operators do it inside."""
    logit = -np.inf if sink is None else float(rounded(np.array([sink]), dtype)[0])
    top = np.maximum(x.max(axis=1), logit)
    top = np.where(np.isfinite(top), top, 0.0)[:, None]
    weights = np.exp((x - top).astype(np.float32)).astype(np.float64)
    total = weights.sum(axis=1, keepdims=True) + np.exp(logit - top)
    return rounded(weights / np.where(total > 0, total, 1.0), dtype)
