"""Attention over gathered keys and values: torch's fused kernel where it can, explicit float32 otherwise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from baseboard.backends.reference.metadata import ReferenceMetadata, RowGroup, Sight
from baseboard.contract import AttentionKernel, AttentionSpec, KVCacheSpec

#: Scores of the explicit kernel that are held at once, in float32: bounds the memory of long prefills.
_SCORES: Final = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class LayerSlots:
    """One layer's keys and values, a row for each slot."""

    key: torch.Tensor  #: ``[N * B, Hkv, D]``
    value: torch.Tensor  #: ``[N * B, Hkv, Dv]``


def make_kernel(attention: AttentionSpec, kv: KVCacheSpec, device: torch.device) -> AttentionKernel:
    """The kernel for layers of this kind."""
    # The fused kernel has no place for a softcap or a sink; a bias would be rounded to the model's dtype, and with
    # two head sizes it quietly becomes a composite of unfused operators that holds all scores at once.
    fused = attention.softcap is None and attention.sinks is None and attention.alibi_slopes is None
    if fused and kv.head_size == kv.head_size_v:
        return FusedAttention(attention)
    return ExplicitAttention(attention, device)


class _PagedAttention(ABC):
    """Writing, gathering, and the way over the step's rows."""

    def __init__(self, attention: AttentionSpec) -> None:
        self._attention: Final = attention
        self._ratio: Final = attention.num_heads // attention.num_kv_heads

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: LayerSlots, metadata: ReferenceMetadata) -> None:
        layer.key.index_copy_(0, metadata.slots, key)
        layer.value.index_copy_(0, metadata.slots, value)

    def attend(
        self, query: torch.Tensor, layer: LayerSlots, metadata: ReferenceMetadata, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        if out is None:
            out = query.new_empty(*query.shape[:2], layer.value.shape[2])
        for group in metadata.groups(self._attention.sliding_window):
            n, q, w = group.shape
            self._attend(
                query[group.rows].unflatten(1, (-1, self._ratio)).unflatten(0, (n, q)),
                layer.key.index_select(0, group.slots).unflatten(0, (n, w)).transpose(1, 2),
                layer.value.index_select(0, group.slots).unflatten(0, (n, w)).transpose(1, 2),
                group,
                out[group.rows].unflatten(1, (-1, self._ratio)).unflatten(0, (n, q)),
            )
        if metadata.blind is not None:
            out.index_fill_(0, metadata.blind, 0)
        return out

    @abstractmethod
    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: RowGroup, out: torch.Tensor
    ) -> None:
        """Fill ``out`` ``[n, q, Hkv, G, Dv]`` from ``query`` alike, ``key`` and ``value`` ``[n, Hkv, w, D]``."""


class FusedAttention(_PagedAttention):
    """``scaled_dot_product_attention``, without ever repeating keys for the query heads that share them."""

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: RowGroup, out: torch.Tensor
    ) -> None:
        # One query a sequence: the heads that share keys take the place of the queries, [n, Hkv, G, D].
        # One sequence: KV heads take the place of the sequences and their keys are shared by stride, [Hkv, G, q, D].
        if group.shape[1] == 1:
            result = self._fused(query[:, 0], key, value, group)
            out[:, 0] = result
        else:
            shared = (-1, self._ratio, -1, -1)
            result = self._fused(
                query[0].permute(1, 2, 0, 3), key[0, :, None].expand(shared), value[0, :, None].expand(shared), group
            )
            out[0] = result.permute(2, 0, 1, 3)

    def _fused(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: RowGroup) -> torch.Tensor:
        return scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=group.mask[:, None] if group.sight is Sight.MASK else None,
            is_causal=group.sight is Sight.TRIANGLE,
            scale=self._attention.scale,
        )


class ExplicitAttention(_PagedAttention):
    """The definition in :class:`AttentionSpec`, step by step in float32."""

    def __init__(self, attention: AttentionSpec, device: torch.device) -> None:
        super().__init__(attention)
        self._slopes: Final = self._per_head(attention.alibi_slopes, device)
        self._sinks: Final = self._per_head(attention.sinks, device)

    def _per_head(self, values: tuple[float, ...] | None, device: torch.device) -> torch.Tensor | None:
        """``[Hkv, G, 1, 1]``"""
        if values is None:
            return None
        return torch.tensor(values, dtype=torch.float32, device=device).reshape(-1, self._ratio, 1, 1)

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: RowGroup, out: torch.Tensor
    ) -> None:
        keys, values = _float_rows(key).transpose(-1, -2), _float_rows(value)
        for queries in _tiles(group, self._attention.num_heads):
            part = query[:, queries].permute(0, 2, 3, 1, 4).float()  # [n, Hkv, G, t, D]
            scores = torch.matmul(part.flatten(2, 3), keys).unflatten(2, part.shape[2:4])  # [n, Hkv, G, t, w]
            weights = self._weights(scores, group, queries)
            result = torch.matmul(weights.flatten(2, 3), values).unflatten(2, part.shape[2:4])
            out[:, queries] = result.permute(0, 3, 1, 2, 4).to(out.dtype)

    def _weights(self, scores: torch.Tensor, group: RowGroup, queries: slice) -> torch.Tensor:
        """Normalised weights from plain products, in place."""
        scores.mul_(self._attention.scale)
        if self._attention.softcap is not None:
            scores.div_(self._attention.softcap).tanh_().mul_(self._attention.softcap)
        if self._slopes is not None:
            distance = group.key_positions[:, None, :] - group.query_positions[:, queries, None]
            scores.add_(self._slopes * distance[:, None, None].float())
        scores.masked_fill_(~group.visible(queries)[:, None, None], -torch.inf)
        if self._sinks is None:
            return scores.softmax(-1)
        highest = torch.maximum(scores.amax(-1, keepdim=True), self._sinks)
        weights = scores.sub_(highest).exp_()
        return weights.div_(weights.sum(-1, keepdim=True) + (self._sinks - highest).exp())


def _float_rows(gathered: torch.Tensor) -> torch.Tensor:
    """In float32, and each head's rows together: converting and laying out anew in one pass."""
    return gathered.to(torch.float32, memory_format=torch.contiguous_format)


def _tiles(group: RowGroup, num_heads: int) -> Iterator[slice]:
    """Queries in runs whose scores stay within bounds; a run has one query at least."""
    n, q, w = group.shape
    size = max(1, _SCORES // (n * w * num_heads))
    return (slice(at, at + size) for at in range(0, q, size))
