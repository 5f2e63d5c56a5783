"""Finds out, on the device itself, what a band's ``pre_tokens`` counts.

The documents say "the previous n tokens", which lets a window of W keys be W - 1 or W, and projects in the field pass
both. A wrong guess is a key too many or too few in every layer with a window, and no error. So it is measured once.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from baseboard.contract import AttentionSpec, KVCacheSpec, StepBatch
from baseboard.kit.dtypes import torch_dtype
from baseboard.kit.pool import DeviceMemory
from baseboard_ascend_npu.cache import make_cache
from baseboard_ascend_npu.fused import FusedCall, Sight
from baseboard_ascend_npu.host import Upload
from baseboard_ascend_npu.limits import SHARED_HEAD_SIZES
from baseboard_ascend_npu.metadata import StepMetadata
from baseboard_ascend_npu.operators import Operators

_TOKENS: Final = 8
_BAND: Final = 3
_BLOCK: Final = 16


def measure_band(operators: Operators, mask: torch.Tensor) -> int | None:
    """What to add to a window of W keys, the query's own included, to get ``pre_tokens``: -1 or 0.

    None where the operator does neither: then windows must be computed another way. Waits for the device.
    """
    seen = _keys_seen(operators, mask)
    for offset in (-1, 0):
        window = _BAND - offset
        if seen == [min(position + 1, window) for position in range(_TOKENS)]:
            return offset
    return None


def _keys_seen(operators: Operators, mask: torch.Tensor) -> list[int]:
    """How many keys each query of a prefill sees with ``pre_tokens`` 3: equal keys weigh alike, values tell which."""
    size = SHARED_HEAD_SIZES[0]
    spec = KVCacheSpec(1, 1, size, size, "bfloat16", _BLOCK)
    cache = make_cache(spec, 2, DeviceMemory(mask.device))
    layer = cache.layer(0)
    one_hot = torch.eye(_TOKENS, size, dtype=torch_dtype(spec.dtype))
    layer.value_rows[1, :_TOKENS] = one_hot.to(mask.device)
    call = FusedCall(operators.fused, AttentionSpec(1, 1, size, 1.0), mask)
    query = torch.zeros(_TOKENS, 1, size, dtype=torch_dtype(spec.dtype), device=mask.device)
    step = StepMetadata(_prefill(), _BLOCK, Upload(mask.device))
    out = call(query, layer, step, Sight(4, _BAND, 0)).cpu()[:, 0, :_TOKENS]
    return (out > 0).sum(-1).tolist()


def _prefill() -> StepBatch:
    return StepBatch(
        query_start_loc=np.array([0, _TOKENS], np.int32),
        seq_lens=np.array([_TOKENS], np.int32),
        block_tables=np.array([[1]], np.int32),
        slot_mapping=np.arange(_BLOCK, _BLOCK + _TOKENS, dtype=np.int64),
        positions=np.arange(_TOKENS, dtype=np.int64),
        num_decodes=0,
        max_query_len=_TOKENS,
        max_seq_len=_TOKENS,
    )
