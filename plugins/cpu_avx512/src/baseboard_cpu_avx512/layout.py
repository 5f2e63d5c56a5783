"""How keys and values lie in a block. The picture is in ``native/abi.h``."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

import torch

from baseboard.contract import KVCache, KVCacheSpec
from baseboard.kit.planar import PlanarKVCache
from baseboard_cpu_avx512.memory import PoolMemory
from baseboard_cpu_avx512.structures import DTYPES, Cache

_SIZES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
_SCALE_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Bytes of one layer's block: heads one after the other, each with its keys, its values, and int8's scales."""

    spec: KVCacheSpec

    @property
    def stored(self) -> str:
        return self.spec.dtype if self.spec.kv_dtype == "auto" else self.spec.kv_dtype

    @property
    def keys(self) -> int:
        return self.spec.block_size * self.spec.head_size * _SIZES[self.stored]

    @property
    def values(self) -> int:
        return self.spec.block_size * self.spec.head_size_v * _SIZES[self.stored]

    @property
    def scales(self) -> int:
        """Key scales, then value scales, one for each token."""
        return 2 * self.spec.block_size * _SCALE_BYTES if self.stored == "int8" else 0

    @property
    def head(self) -> int:
        return self.keys + self.values + self.scales

    @property
    def block(self) -> int:
        return self.head * self.spec.num_kv_heads

    def describe(self, plane: torch.Tensor) -> Cache:
        """The structure that the kernels read ``plane`` by."""
        return Cache(
            base=plane.data_ptr(),
            block_stride=plane.stride(0),
            head_stride=self.head,
            value_offset=self.keys,
            scale_offset=self.keys + self.values,
            kv_heads=self.spec.num_kv_heads,
            head_size=self.spec.head_size,
            head_size_v=self.spec.head_size_v,
            block_size=self.spec.block_size,
            stored=DTYPES[self.stored],
            dtype=DTYPES[self.spec.dtype],
        )


@dataclass(frozen=True, slots=True, eq=False)
class LayerPages:
    """One layer's blocks, handed to its kernel."""

    structure: Cache
    address: int  #: of the structure
    plane: torch.Tensor  #: keeps the memory


def make_cache(spec: KVCacheSpec, num_blocks: int, memory: PoolMemory) -> KVCache:
    """A cache of one plane a layer. Raises ``torch.OutOfMemoryError``."""
    layout = BlockLayout(spec)
    planes = memory.planes(num_blocks, [layout.block] * spec.num_layers)
    return PlanarKVCache(spec, planes, tuple(_pages(layout, plane) for plane in planes))


def _pages(layout: BlockLayout, plane: torch.Tensor) -> LayerPages:
    structure = layout.describe(plane)
    return LayerPages(structure, ctypes.addressof(structure), plane)
