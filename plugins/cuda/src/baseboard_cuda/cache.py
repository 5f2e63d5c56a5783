"""KV caches: one pool of memory, a plane of it for each layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from baseboard.contract import KVCache, KVCacheSpec
from baseboard.kit.pool import Memory
from baseboard_cuda.layout import BlockLayout
from baseboard_cuda.registered import RegisteredMemory


@dataclass(frozen=True, slots=True, eq=False)
class LayerPlane:
    """What a layer's kernels see of its plane: the same bytes twice."""

    data: torch.Tensor  #: in the layout's element type, ``[N, stride]``
    scales: torch.Tensor  #: as float32


@dataclass(frozen=True, slots=True, eq=False)
class PooledKVCache:
    """A :class:`baseboard.contract.KVCache` whose planes are one allocation, so that one launch reaches all layers."""

    spec: KVCacheSpec
    pool: torch.Tensor  #: uint8 ``[L, N, nbytes]``
    planes: tuple[torch.Tensor, ...]
    layers: tuple[LayerPlane, ...]
    pinned: bool  #: host memory that the device reaches by itself

    @property
    def num_blocks(self) -> int:
        return self.pool.shape[1]

    def layer(self, index: int) -> LayerPlane:
        return self.layers[index]


def make_cache(spec: KVCacheSpec, layout: BlockLayout, num_blocks: int, memory: Memory) -> PooledKVCache:
    """A zeroed cache. ``ValueError`` when it has no block, ``torch.OutOfMemoryError`` when it does not fit."""
    if num_blocks < 1:
        raise ValueError(f"num_blocks={num_blocks} is not allowed: a pool has at least the null block")
    pool = memory.zeros((spec.num_layers, num_blocks, layout.nbytes), torch.uint8)
    planes = tuple(pool.unbind(0))
    layers = tuple(LayerPlane(plane.view(layout.element), plane.view(torch.float32)) for plane in planes)
    return PooledKVCache(spec, pool, planes, layers, isinstance(memory, RegisteredMemory))


def pooled(cache: KVCache, name: str) -> PooledKVCache:
    """``cache`` as one of ours. ``ValueError`` naming the argument for another backend's."""
    if not isinstance(cache, PooledKVCache):
        raise ValueError(f"{name} is a {type(cache).__name__}, not a cache that this backend has allocated")
    return cache
