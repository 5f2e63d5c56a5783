"""Attention as the contract's text defines it, in NumPy float64: shares no code with any backend."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import AttentionSpec

Array = NDArray[np.float64]


def attention(query: Array, key: Array, value: Array, spec: AttentionSpec, causal: bool = True) -> Array:
    """``query`` ``[Q, H, D]`` are the last Q of the sequence's L tokens; ``key`` ``[L, Hkv, D]``; ``[Q, H, Dv]``."""
    queries, heads, _ = query.shape
    p = np.arange(len(key) - queries, len(key))[:, None]
    j = np.arange(len(key))[None, :]
    out = np.zeros((queries, heads, value.shape[2]))
    for h in range(heads):
        kv_head = h // (heads // spec.num_kv_heads)
        x = spec.scale * (query[:, h] @ key[:, kv_head].T)
        if spec.softcap is not None:
            x = spec.softcap * np.tanh(x / spec.softcap)
        if spec.alibi_slopes is not None:
            x = x + spec.alibi_slopes[h] * (j - p)
        # No key is out of reach of float64's exp here, so no maximum need be taken off first.
        terms = np.where(visible(p, j, spec.sliding_window, causal), np.exp(x), 0.0)
        sink = np.exp(spec.sinks[h]) if spec.sinks is not None else 0.0
        sums = terms.sum(axis=1) + sink
        seen = terms.any(axis=1)
        out[seen, h] = (terms[seen] / sums[seen, None]) @ value[:, kv_head]
    return out


def visible(p: NDArray[np.int64], j: NDArray[np.int64], window: int | None, causal: bool) -> NDArray[np.bool_]:
    after = p - window < j if window is not None else np.full(np.broadcast_shapes(p.shape, j.shape), True)
    return after & (j <= p) if causal else after
