"""How the fused operator is called: layout TND over pages, lengths as host lists, a compressed mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from baseboard.contract import AttentionSpec
from baseboard_ascend_npu.cache import LayerCache
from baseboard_ascend_npu.limits import MASK_SIDE
from baseboard_ascend_npu.metadata import StepMetadata
from baseboard_ascend_npu.operators import Operator

_ALL: Final = 2_147_483_647  #: what the operator takes for "no bound"


def compressed_mask(device: torch.device) -> torch.Tensor:
    """The mask that modes 3 and 4 want whatever the lengths are: int8, 1 where a key comes after its query."""
    return torch.ones(MASK_SIDE, MASK_SIDE, dtype=torch.int8).triu(diagonal=1).to(device)


@dataclass(frozen=True, slots=True)
class Sight:
    """Which keys a query sees, in the operator's words."""

    sparse_mode: int  #: 0 all; 3 all up to its own, counted from the last; 4 a band around its own
    pre_tokens: int = _ALL
    next_tokens: int = _ALL

    @classmethod
    def of(cls, pre_tokens: int | None, step: StepMetadata) -> Sight:
        """``pre_tokens``: what the operator has to be given for the layer's window; None where it has none."""
        if pre_tokens is not None:
            return cls(4, pre_tokens, 0 if step.causal else _ALL)
        return cls(3 if step.causal else 0)


class FusedCall:
    """One layer's call of the fused operator, version 1."""

    def __init__(self, operator: Operator, attention: AttentionSpec, mask: torch.Tensor) -> None:
        self._operator: Final = operator
        self._mask: Final = mask
        self._constant: Final[dict[str, Any]] = {
            "num_heads": attention.num_heads,
            "num_key_value_heads": attention.num_kv_heads,
            "scale": attention.scale,
            "input_layout": "TND",
        }

    def __call__(self, query: torch.Tensor, layer: LayerCache, step: StepMetadata, sight: Sight) -> torch.Tensor:
        """``query`` ``[T, H, D]``, contiguous; a new tensor of the same shape."""
        out, _ = self._operator(
            query,
            layer.key_rows,
            layer.value_rows,
            atten_mask=self._mask if sight.sparse_mode else None,
            actual_seq_lengths=step.query_ends,
            actual_seq_lengths_kv=step.lengths,
            block_table=step.tables,
            block_size=layer.key.shape[1],
            sparse_mode=sight.sparse_mode,
            pre_tokens=sight.pre_tokens,
            next_tokens=sight.next_tokens,
            **self._constant,
        )
        return out


class FusedCallWithSinks:
    """The same in version 2, which has other names for the same and takes sinks, bfloat16 ``[H]``."""

    def __init__(self, operator: Operator, attention: AttentionSpec, mask: torch.Tensor) -> None:
        self._operator: Final = operator
        self._mask: Final = mask
        self._constant: Final[dict[str, Any]] = {
            "num_query_heads": attention.num_heads,
            "num_key_value_heads": attention.num_kv_heads,
            "softmax_scale": attention.scale,
            "learnable_sink": torch.tensor(attention.sinks, dtype=torch.bfloat16).to(mask.device),
            "input_layout": "TND",
        }

    def __call__(self, query: torch.Tensor, layer: LayerCache, step: StepMetadata, sight: Sight) -> torch.Tensor:
        """As :meth:`FusedCall.__call__`."""
        out, _ = self._operator(
            query,
            layer.key_rows,
            layer.value_rows,
            atten_mask=self._mask if sight.sparse_mode else None,
            actual_seq_qlen=step.query_ends,
            actual_seq_kvlen=step.lengths,
            block_table=step.tables,
            block_size=layer.key.shape[1],
            sparse_mode=sight.sparse_mode,
            pre_tokens=sight.pre_tokens,
            next_tokens=sight.next_tokens,
            **self._constant,
        )
        return out
