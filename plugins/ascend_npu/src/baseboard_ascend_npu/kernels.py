"""Attention kernels: one object a layer, called directly in every step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import torch

from baseboard.contract import AttentionSpec
from baseboard_ascend_npu.cache import LayerCache
from baseboard_ascend_npu.faults import device_faults
from baseboard_ascend_npu.fused import FusedCall, FusedCallWithSinks, Sight
from baseboard_ascend_npu.gathering import GatheredAttention, Selection
from baseboard_ascend_npu.metadata import StepMetadata
from baseboard_ascend_npu.operators import Operator


class PagedKernel(ABC):
    """Writing, which is the same for all, and errors in the contract's terms."""

    def __init__(self, scatter: Operator) -> None:
        self._scatter: Final = scatter

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: LayerCache, metadata: StepMetadata) -> None:
        if not metadata.num_tokens:
            return
        with device_faults():
            if metadata.stored is not None:
                key, value = key.index_select(0, metadata.stored), value.index_select(0, metadata.stored)
            # The mode must be given: the operator's own default is another layout.
            self._scatter(
                key.contiguous(), value.contiguous(), layer.key, layer.value, metadata.slots, cache_mode="Norm"
            )

    def attend(
        self, query: torch.Tensor, layer: LayerCache, metadata: StepMetadata, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        if not metadata.num_tokens:
            return query.new_empty(0, query.shape[1], layer.value.shape[3])
        with device_faults():
            return self._attend(query.contiguous(), layer, metadata, out)

    @abstractmethod
    def _attend(
        self, query: torch.Tensor, layer: LayerCache, metadata: StepMetadata, out: torch.Tensor | None
    ) -> torch.Tensor: ...


class FusedKernel(PagedKernel):
    """Everything by the fused operator: prefill, chunks, decodes and any mix of them in one call."""

    def __init__(self, scatter: Operator, call: FusedCall | FusedCallWithSinks, pre_tokens: int | None) -> None:
        """``pre_tokens``: the operator's number for the layer's window; None where it has none."""
        super().__init__(scatter)
        self._call: Final = call
        self._pre_tokens: Final = pre_tokens

    def _attend(
        self, query: torch.Tensor, layer: LayerCache, metadata: StepMetadata, out: torch.Tensor | None
    ) -> torch.Tensor:
        del out  # the operator makes its own
        return self._call(query, layer, metadata, Sight.of(self._pre_tokens, metadata))


class GatherKernel(PagedKernel):
    """Everything out of torch's operators."""

    def __init__(self, scatter: Operator, attention: AttentionSpec, device: torch.device) -> None:
        super().__init__(scatter)
        self._gathered: Final = GatheredAttention(attention, device)
        self._window: Final = attention.sliding_window

    def _attend(
        self, query: torch.Tensor, layer: LayerCache, metadata: StepMetadata, out: torch.Tensor | None
    ) -> torch.Tensor:
        out = _result(query, layer, out)
        for group in metadata.groups(Selection(0, self._window)):
            self._gathered.fill(out, query, layer, group)
        return out


class PagedDecodeKernel(PagedKernel):
    """Decodes, which come first in a step, by the paged operator; the rest gathered. For layers without a window."""

    def __init__(self, scatter: Operator, paged: Operator, attention: AttentionSpec, device: torch.device) -> None:
        super().__init__(scatter)
        self._paged: Final = paged
        self._attention: Final = attention
        self._gathered: Final = GatheredAttention(attention, device)

    def _attend(
        self, query: torch.Tensor, layer: LayerCache, metadata: StepMetadata, out: torch.Tensor | None
    ) -> torch.Tensor:
        out = _result(query, layer, out)
        decodes = metadata.num_decodes
        if decodes:
            self._paged(
                query[:decodes],
                layer.key,
                layer.value,
                self._attention.num_kv_heads,
                self._attention.num_heads,
                self._attention.scale,
                metadata.tables[:decodes],
                metadata.decode_lengths,
                out[:decodes],
            )
        for group in metadata.groups(Selection(decodes, None)):
            self._gathered.fill(out, query, layer, group)
        return out


def _result(query: torch.Tensor, layer: LayerCache, out: torch.Tensor | None) -> torch.Tensor:
    """Where to put the result: the paged operator writes to contiguous memory only."""
    if out is not None and out.is_contiguous():
        return out
    return query.new_empty(*query.shape[:2], layer.value.shape[3])
