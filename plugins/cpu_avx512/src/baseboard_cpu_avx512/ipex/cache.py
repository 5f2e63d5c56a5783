"""How IPEX wants keys and values to lie: ``[num_blocks, KV heads, block size, head size]``, each in a tensor.

What IPEX's own documentation says of it in one place, tokens before heads, ends the process.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from baseboard.contract import KVCache, KVCacheSpec
from baseboard.kit.dtypes import torch_dtype
from baseboard.kit.planar import PlanarKVCache
from baseboard_cpu_avx512.memory import PoolMemory


@dataclass(frozen=True, slots=True, eq=False)
class LayerBlocks:
    """One layer's blocks, handed to its kernel."""

    keys: torch.Tensor
    values: torch.Tensor


def plane_nbytes(spec: KVCacheSpec) -> int:
    """Bytes of one block in one plane: the keys of one layer, or its values."""
    return spec.num_kv_heads * spec.block_size * spec.head_size * torch_dtype(spec.dtype).itemsize


def make_cache(spec: KVCacheSpec, num_blocks: int, memory: PoolMemory) -> KVCache:
    """A cache of two planes a layer. Raises ``torch.OutOfMemoryError``."""
    planes = memory.planes(num_blocks, [plane_nbytes(spec)] * (2 * spec.num_layers))
    shape = (num_blocks, spec.num_kv_heads, spec.block_size, spec.head_size)
    views = [plane.view(torch_dtype(spec.dtype)).view(shape) for plane in planes]
    layers = tuple(LayerBlocks(*views[first : first + 2]) for first in range(0, len(views), 2))
    return PlanarKVCache(spec, planes, layers)
