"""FlashAttention as torch has it: ``torch.nn.attention.varlen``, since torch 2.13 with block tables."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from baseboard.contract import AttentionSpec, KVCacheSpec
from baseboard_cuda.cache import LayerPlane
from baseboard_cuda.engines.choice import Attend, Engine, Missing
from baseboard_cuda.engines.pages import common_reasons, pages_of
from baseboard_cuda.faults import device_faults
from baseboard_cuda.metadata import CudaMetadata

NAME: Final = "varlen"
PAGE_MULTIPLE: Final = 256
_HEAD_MULTIPLE: Final = 8
_LARGEST_HEAD: Final = 256
_FROM: Final = 80


@dataclass(frozen=True, slots=True)
class Varlen:
    """Implements :class:`baseboard_cuda.engines.choice.Engine`."""

    varlen_attn: Callable[..., Any]
    name: str = NAME

    def reasons_against(self, attention: AttentionSpec, kv: KVCacheSpec) -> list[str]:
        reasons = list(common_reasons(attention, kv))
        if kv.block_size % PAGE_MULTIPLE:
            reasons.append(f"block size {kv.block_size} is no multiple of {PAGE_MULTIPLE}")
        if kv.head_size % _HEAD_MULTIPLE or kv.head_size > _LARGEST_HEAD:
            reasons.append(f"head size {kv.head_size} is no multiple of {_HEAD_MULTIPLE} up to {_LARGEST_HEAD}")
        if attention.softcap is not None:
            reasons.append("it has no softcap")
        return reasons

    def make(self, attention: AttentionSpec, kv: KVCacheSpec) -> Attend:
        return _VarlenLayer(self.varlen_attn, attention, kv)


@dataclass(frozen=True, slots=True)
class _VarlenLayer:
    varlen_attn: Callable[..., Any]
    attention: AttentionSpec
    kv: KVCacheSpec

    def __call__(self, query: torch.Tensor, layer: LayerPlane, metadata: CudaMetadata) -> torch.Tensor:
        pages = pages_of(layer, self.kv)
        window = self.attention.sliding_window
        # Ours counts the query's own key, theirs the keys before it.
        bounds = (-1 if window is None else window - 1, 0 if metadata.causal else -1)
        if not query.shape[0]:
            return torch.empty_like(query)
        with device_faults("attention by torch's varlen"):
            return self.varlen_attn(
                query,
                pages[:, 0],
                pages[:, 1],
                metadata.query_start_loc,
                metadata.key_start_loc,
                metadata.max_query_len,
                metadata.max_seq_len,
                scale=self.attention.scale,
                window_size=bounds,
                enable_gqa=self.attention.num_heads != self.kv.num_kv_heads,
                seqused_k=metadata.seq_lens,
                block_table=metadata.block_tables,
            )


def find_varlen(capability: int) -> Engine:
    """As the torch that is installed has it, for a GPU of this compute capability (90 is 9.0)."""
    if capability < _FROM:
        return Missing(NAME, f"torch's FlashAttention needs compute capability 8.0, not {capability / 10}")
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return Missing(NAME, f"torch {torch.__version__} has no torch.nn.attention.varlen; 2.13 has it")
    if not {"block_table", "seqused_k"} <= set(inspect.signature(varlen_attn).parameters):
        return Missing(NAME, f"varlen_attn of torch {torch.__version__} takes no block table; that of 2.13 does")
    return Varlen(varlen_attn)
