"""Attention as the contract's text defines it, in NumPy float64. Shares no code with any backend."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import AttentionSpec
from baseboard_conformance.numerics import Array


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """One sequence of L tokens: ``query`` ``[Q, H, D]`` of the last Q, ``key`` ``[L, Hkv, D]``, ``value`` likewise."""

    query: Array
    key: Array
    value: Array


def visible(num_queries: int, num_keys: int, window: int | None, causal: bool) -> NDArray[np.bool_]:  # noqa: FBT001 - the contract's own field
    """Which keys a query sees: bool ``[Q, L]``; the queries are the last ones of the sequence."""
    p = np.arange(num_keys - num_queries, num_keys)[:, None]
    j = np.arange(num_keys)[None, :]
    seen = np.full((num_queries, num_keys), True)
    if window is not None:
        seen &= j > p - window
    return seen & (j <= p) if causal else seen


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """What attention gives, and how much of it rounding may move; ``[Q, H, Dv]`` both."""

    out: Array
    #: Root of the sum of ``(weight x value)^2``: what comes of errors that are relative to each term, and of different
    #: signs. Where the terms cancel, ``out`` is far smaller than this, and so is no measure of its own error.
    spread: Array


def attention(tensors: Tensors, spec: AttentionSpec, seen: NDArray[np.bool_]) -> Array:
    """The result ``[Q, H, Dv]``; ``seen`` as :func:`visible` gives it."""
    return solve(tensors, spec, seen).out


def solve(tensors: Tensors, spec: AttentionSpec, seen: NDArray[np.bool_]) -> Solution:
    """As :func:`attention`, with what its error is measured against."""
    query, key, value = tensors.query, tensors.key, tensors.value
    p = np.arange(len(key) - len(query), len(key))[:, None]
    j = np.arange(len(key))[None, :]
    out = np.zeros((*query.shape[:2], value.shape[2]))
    spread = np.zeros_like(out)
    ratio = spec.num_heads // spec.num_kv_heads
    for h in range(spec.num_heads):
        x = spec.scale * (query[:, h] @ key[:, h // ratio].T)
        if spec.softcap is not None:
            x = spec.softcap * np.tanh(x / spec.softcap)
        if spec.alibi_slopes is not None:
            x = x + spec.alibi_slopes[h] * (j - p)
        x = np.where(seen, x, -np.inf)
        sink = -np.inf if spec.sinks is None else spec.sinks[h]
        top = np.maximum(x.max(axis=1, initial=-np.inf), sink)[:, None]
        sighted = np.isfinite(top[:, 0])
        weights = np.exp(x[sighted] - top[sighted])
        total = weights.sum(axis=1, keepdims=True) + np.exp(sink - top[sighted])
        weights /= total
        out[sighted, h] = weights @ value[:, h // ratio]
        spread[sighted, h] = np.sqrt(weights**2 @ value[:, h // ratio] ** 2)
    return Solution(out, spread)


def largest_logit(tensors: Tensors, spec: AttentionSpec) -> float:
    """Over all queries and keys, seen or not: how much rounding a logit can bring with it."""
    ratio = spec.num_heads // spec.num_kv_heads
    heads = range(spec.num_heads)
    return max(float(np.abs(spec.scale * (tensors.query[:, h] @ tensors.key[:, h // ratio].T)).max()) for h in heads)
