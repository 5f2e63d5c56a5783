"""What the runtime knows of a model's attention layers, and how they are grouped for the KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baseboard.contract import AttentionSpec, DType, KVCacheSpec, KVDType


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """One attention layer: how it attends, and what it stores for each token."""

    layer_idx: int  #: in model order, from 0
    attention: AttentionSpec
    num_kv_heads: int
    head_size: int  #: of queries and keys
    head_size_v: int


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that are stored alike and so share a cache, block tables and metadata."""

    spec: KVCacheSpec
    layers: tuple[int, ...]  #: indices into the model's layers; the group's layer ``i`` is model layer ``layers[i]``


@dataclass(frozen=True, slots=True)
class KVFormat:
    """How keys and values are stored: what the grouping needs beside the layers."""

    dtype: DType
    block_size: int
    kv_dtype: KVDType = "auto"


def group_layers(layers: Sequence[LayerFacts], stored: KVFormat) -> tuple[LayerGroup, ...]:
    """Layers with equal KV heads, head sizes and window, in order of each group's first layer."""
    members: dict[tuple[int, int, int, int | None], list[int]] = {}
    for layer in layers:
        alike = (layer.num_kv_heads, layer.head_size, layer.head_size_v, layer.attention.sliding_window)
        members.setdefault(alike, []).append(layer.layer_idx)
    return tuple(
        LayerGroup(
            spec=KVCacheSpec(
                num_layers=len(indices),
                num_kv_heads=num_kv_heads,
                head_size=head_size,
                head_size_v=head_size_v,
                dtype=stored.dtype,
                block_size=stored.block_size,
                kv_dtype=stored.kv_dtype,
                sliding_window=window,
            ),
            layers=tuple(indices),
        )
        for (num_kv_heads, head_size, head_size_v, window), indices in members.items()
    )
