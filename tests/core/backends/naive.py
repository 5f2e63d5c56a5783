"""The same formula done naively in the model's dtype: what error that dtype makes unavoidable."""

from __future__ import annotations

import torch

from baseboard.contract import AttentionSpec


def naive_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spec: AttentionSpec, causal: bool = True
) -> torch.Tensor:
    """Every intermediate rounded to the dtype of ``query`` ``[Q, H, D]``; ``key`` ``[L, Hkv, D]``; ``[Q, H, Dv]``."""
    ratio = spec.num_heads // spec.num_kv_heads
    q, k, v = (x.transpose(0, 1) for x in (query, key.repeat_interleave(ratio, 1), value.repeat_interleave(ratio, 1)))
    x = (q @ k.transpose(1, 2)) * spec.scale
    if spec.softcap is not None:
        x = torch.tanh(x / spec.softcap) * spec.softcap
    j = torch.arange(len(key))
    p = torch.arange(len(key) - len(query), len(key))[:, None]
    if spec.alibi_slopes is not None:
        x = x + (torch.tensor(spec.alibi_slopes)[:, None, None] * (j - p)).to(x.dtype)
    visible = (j <= p) if causal else torch.ones(len(query), len(key), dtype=torch.bool)
    if spec.sliding_window is not None:
        visible = visible & (j > p - spec.sliding_window)
    x = x.masked_fill(~visible, -torch.inf)
    if spec.sinks is not None:
        sinks = torch.tensor(spec.sinks, dtype=x.dtype)[:, None, None].expand(-1, len(query), 1)
        weights = torch.cat([x, sinks], -1).softmax(-1)[..., :-1]
    else:
        weights = x.softmax(-1)
    return (weights @ v).transpose(0, 1)
