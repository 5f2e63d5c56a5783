"""The reference backend's hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.backends.reference.attention import LayerSlots, make_kernel
from baseboard.backends.reference.device import memory_meter
from baseboard.backends.reference.metadata import ReferenceMetadata
from baseboard.backends.reference.support import capabilities
from baseboard.contract import (
    AttentionKernel,
    AttentionSpec,
    BackendFault,
    BackendUnavailable,
    Capabilities,
    GraphRunner,
    KVCache,
    KVCacheSpec,
    LayerKind,
    MemorySnapshot,
    OperatorKernel,
    StepBatch,
    Transfer,
    Unsupported,
    hookimpl,
)
from baseboard.kit.dtypes import torch_dtype
from baseboard.kit.planar import PlanarKVCache, copy_blocks, swap_blocks, zero_blocks
from baseboard.kit.pool import DeviceMemory, Memory, PinnedMemory, allocate_planes
from baseboard.kit.support import reasons_against


class ReferenceBackend:
    """Plain torch on one device. Each layer has a plane of keys and one of values, ``[N, B, Hkv, D]`` each.

    After :meth:`close` every other hook raises ``BackendUnavailable``.
    """

    def __init__(self, device: torch.device) -> None:
        self._device: torch.device | None = device
        self._promise: Final = capabilities(device)
        self._meter: Final = memory_meter(device)
        pinned = self._promise.pinned_host_memory
        self._host: Final[Memory] = PinnedMemory() if pinned else DeviceMemory(torch.device("cpu"))

    @hookimpl
    def capabilities(self) -> Capabilities:
        self._open()
        return self._promise

    @hookimpl
    def torch_device(self) -> torch.device:
        return self._open()

    @hookimpl
    def unsupported(self, kv: KVCacheSpec, attention: AttentionSpec) -> list[str]:
        self._open()
        return reasons_against(self._promise, kv, attention)

    @hookimpl
    def kv_block_nbytes(self, spec: KVCacheSpec) -> int:
        self._open()
        return sum(_plane_nbytes(spec))

    @hookimpl
    def allocate_kv_cache(self, spec: KVCacheSpec, num_blocks: int) -> KVCache:
        return _make_cache(spec, num_blocks, DeviceMemory(self._open()))

    @hookimpl
    def allocate_host_kv_cache(self, like: KVCache, num_blocks: int) -> KVCache:
        self._open()
        return _make_cache(like.spec, num_blocks, self._host)

    @hookimpl
    def copy_blocks(self, cache: KVCache, pairs: NDArray[np.int64]) -> None:
        self._open()
        copy_blocks(cache, pairs)

    @hookimpl
    def swap_blocks(self, source: KVCache, destination: KVCache, pairs: NDArray[np.int64]) -> Transfer:
        self._open()
        return swap_blocks(source, destination, pairs)

    @hookimpl
    def zero_blocks(self, cache: KVCache, blocks: NDArray[np.int64]) -> None:
        self._open()
        zero_blocks(cache, blocks)

    @hookimpl
    def memory_snapshot(self) -> MemorySnapshot:
        self._open()
        return self._meter.snapshot()

    @hookimpl
    def reset_peak_memory(self) -> None:
        self._open()
        self._meter.reset_peak()

    @hookimpl
    def empty_cache(self) -> None:
        self._open()
        self._meter.empty_cache()

    @hookimpl
    def allocate_host_buffer(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        self._open()
        try:
            numpy_dtype = np.dtype(dtype)
        except TypeError as error:
            raise ValueError(f"dtype {dtype!r} is not a name that numpy knows") from error
        nbytes = int(np.prod(shape, dtype=np.int64)) * numpy_dtype.itemsize
        return self._host.zeros((nbytes,), torch.uint8).numpy().view(numpy_dtype).reshape(shape)

    @hookimpl
    def build_attention_metadata(self, batch: StepBatch, cache: KVCache) -> object:
        return ReferenceMetadata(batch, cache.spec.block_size, self._open())

    @hookimpl
    def attention_kernel(self, attention: AttentionSpec, kv: KVCacheSpec) -> AttentionKernel:
        """Raises ``Unsupported`` for what :meth:`unsupported` gives reasons against."""
        device = self._open()
        reasons = reasons_against(self._promise, kv, attention)
        if reasons:
            raise Unsupported(reasons)
        return make_kernel(attention, kv, device)

    @hookimpl
    def operator_kernel(self, name: str, spec: Mapping[str, Any]) -> OperatorKernel | None:
        """None for every name: the core's torch version is the reference."""
        del name, spec
        self._open()
        return None

    @hookimpl
    def graph_runner(self, layers: Sequence[LayerKind]) -> GraphRunner | None:
        """None: nothing is recorded, so that every step is told as the contract's text has it."""
        del layers
        self._open()
        return None

    @hookimpl
    def synchronize(self) -> None:
        device = self._open()
        if device.type == "cpu":
            return
        try:
            torch.accelerator.synchronize(device)
        except RuntimeError as error:
            raise BackendFault(f"{device} failed: {error}") from error

    @hookimpl
    def close(self) -> None:
        self._device = None

    def _open(self) -> torch.device:
        if self._device is None:
            raise BackendUnavailable("this reference backend was closed: open it again to use it")
        return self._device


def _plane_nbytes(spec: KVCacheSpec) -> tuple[int, ...]:
    """Bytes of a block in each plane: keys and values of layer 0, of layer 1, and so on."""
    row = spec.block_size * spec.num_kv_heads * torch_dtype(spec.dtype).itemsize
    return (row * spec.head_size, row * spec.head_size_v) * spec.num_layers


def _make_cache(spec: KVCacheSpec, num_blocks: int, memory: Memory) -> PlanarKVCache:
    planes = allocate_planes(memory, num_blocks, _plane_nbytes(spec))
    pairs = zip(planes[::2], planes[1::2], strict=True)
    layers = tuple(LayerSlots(_slots(keys, spec), _slots(values, spec)) for keys, values in pairs)
    return PlanarKVCache(spec, planes, layers)


def _slots(plane: torch.Tensor, spec: KVCacheSpec) -> torch.Tensor:
    """The plane as ``[N * B, Hkv, D]``."""
    num_slots = plane.shape[0] * spec.block_size
    return plane.view(torch_dtype(spec.dtype)).view(num_slots, spec.num_kv_heads, -1)
