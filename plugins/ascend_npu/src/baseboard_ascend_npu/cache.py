"""The KV cache: for each layer a plane of keys and one of values, ``[N, B, Hkv, D]`` each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from baseboard.contract import KVCacheSpec, Unsupported
from baseboard.kit.dtypes import torch_dtype
from baseboard.kit.planar import PlanarKVCache
from baseboard.kit.pool import Memory, allocate_planes
from baseboard_ascend_npu import limits
from baseboard_ascend_npu.support import most_blocks


@dataclass(frozen=True, slots=True, eq=False)
class LayerCache:
    """One layer's keys and values, in the two shapes that the operators want."""

    key: torch.Tensor  #: ``[N, B, Hkv, D]``, for writing
    value: torch.Tensor  #: ``[N, B, Hkv, Dv]``
    key_rows: torch.Tensor  #: ``[N, B, Hkv * D]``, the same memory, for reading
    value_rows: torch.Tensor  #: ``[N, B, Hkv * Dv]``

    def with_heads_in_front(self) -> LayerCache:
        """A copy that is read in the other layout, ``[N, Hkv, B, D]``: to find out which is faster."""
        key, value = (rows.transpose(1, 2).contiguous() for rows in (self.key, self.value))
        return replace(self, key_rows=key, value_rows=value)


def plane_nbytes(spec: KVCacheSpec) -> tuple[int, ...]:
    """Bytes of a block in each plane: keys and values of layer 0, of layer 1, and so on."""
    row = spec.block_size * spec.num_kv_heads * torch_dtype(spec.dtype).itemsize
    return (row * spec.head_size, row * spec.head_size_v) * spec.num_layers


def make_cache(spec: KVCacheSpec, num_blocks: int, memory: Memory) -> PlanarKVCache:
    """Zeroed. Raises ``torch.OutOfMemoryError`` when it does not fit."""
    planes = allocate_planes(memory, num_blocks, plane_nbytes(spec))
    pairs = zip(planes[::2], planes[1::2], strict=True)
    layers = tuple(_layer(_heads(keys, spec), _heads(values, spec)) for keys, values in pairs)
    return PlanarKVCache(spec, planes, layers)


def check_addressable(spec: KVCacheSpec, num_blocks: int) -> None:
    """Raise ``Unsupported`` for a pool of which a layer has more elements than the operators can count."""
    most = most_blocks(spec)
    if num_blocks > most:
        raise Unsupported(
            [
                f"a pool of {num_blocks} blocks is more than the {most} whose keys the NPU's attention operators can "
                f"address ({limits.MAX_ELEMENTS:,} elements a layer): give num_kv_blocks={most - 1} or less"
            ]
        )


def _heads(plane: torch.Tensor, spec: KVCacheSpec) -> torch.Tensor:
    shape = (plane.shape[0], spec.block_size, spec.num_kv_heads, -1)
    return plane.view(torch_dtype(spec.dtype)).view(shape)


def _layer(key: torch.Tensor, value: torch.Tensor) -> LayerCache:
    return LayerCache(key, value, key.flatten(2), value.flatten(2))
