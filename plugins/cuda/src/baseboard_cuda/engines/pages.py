"""Our blocks as the pages of other engines, and what most of them refuse alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from baseboard.contract import AttentionSpec, KVCacheSpec
from baseboard_cuda.cache import LayerPlane

_HALF: Final = ("bfloat16", "float16")


def pages_of(layer: LayerPlane, kv: KVCacheSpec) -> torch.Tensor:
    """The plane as ``[N, 2, B, Hkv, D]``, keys before values: a view."""
    return layer.data.view(-1, 2, kv.block_size, kv.num_kv_heads, kv.head_size)


def common_reasons(attention: AttentionSpec, kv: KVCacheSpec) -> Iterator[str]:
    """What needs our kernel wherever we look."""
    if kv.dtype not in _HALF:
        yield f"it computes {' and '.join(_HALF)}, not {kv.dtype}"
    if kv.kv_dtype != "auto":
        yield f"it reads no {kv.kv_dtype} as we store it"
    if kv.head_size != kv.head_size_v:
        yield f"head sizes {kv.head_size} and {kv.head_size_v} of keys and values differ"
    if kv.block_size * kv.num_kv_heads * kv.head_size % 8:
        yield "keys of a block do not end at a multiple of 16 bytes"
    if attention.alibi_slopes is not None:
        yield "it has no ALiBi"
    if attention.sinks is not None:
        yield "it has no sinks"
