"""How a block of one layer lies in memory.

::

    | keys [B, Hkv, D] | values [B, Hkv, Dv] | key scales [B, Hkv] | value scales [B, Hkv] |
      `- each part begins at a multiple of 16 bytes; scales are float32, and there in FP8 with a scale per head only

Keys and values of a block side by side make one run of bytes of it: half as many copies in a swap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from baseboard.contract import KVCacheSpec
from baseboard.kit.dtypes import torch_dtype

_ALIGNMENT: Final = 16
_SCALE_NBYTES: Final = 4


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Offsets in bytes from the block's beginning; the keys begin at 0."""

    value_offset: int
    key_scale_offset: int
    value_scale_offset: int
    nbytes: int
    element: torch.dtype  #: in which the kernels see the plane
    fp8: bool
    scaled: bool

    @property
    def stride(self) -> int:
        """Elements from one block to the next."""
        return self.nbytes // self.element.itemsize


def block_layout(spec: KVCacheSpec, fp8_scale: str) -> BlockLayout:
    """The layout for ``spec``; ``fp8_scale`` matters where keys and values are stored in FP8."""
    fp8 = spec.kv_dtype == "fp8_e4m3"
    scaled = fp8 and fp8_scale == "token_head"
    element = torch.uint8 if fp8 else torch_dtype(spec.dtype)
    rows = spec.block_size * spec.num_kv_heads
    scales = _aligned(rows * _SCALE_NBYTES) if scaled else 0
    values_at = _aligned(rows * spec.head_size * element.itemsize)
    scales_at = values_at + _aligned(rows * spec.head_size_v * element.itemsize)
    return BlockLayout(values_at, scales_at, scales_at + scales, scales_at + 2 * scales, element, fp8, scaled)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
