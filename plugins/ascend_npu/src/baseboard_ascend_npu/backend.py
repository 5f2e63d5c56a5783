"""The Ascend backend's hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

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
from baseboard_ascend_npu import memory
from baseboard_ascend_npu.blocks import copy_blocks, zero_blocks
from baseboard_ascend_npu.cache import check_addressable, make_cache, plane_nbytes
from baseboard_ascend_npu.device_module import npu
from baseboard_ascend_npu.factory import KernelFactory
from baseboard_ascend_npu.faults import device_faults
from baseboard_ascend_npu.fused_operators import make_operator
from baseboard_ascend_npu.graphs import NpuGraphRunner, can_capture
from baseboard_ascend_npu.host import PinnedHost, Upload
from baseboard_ascend_npu.metadata import StepMetadata
from baseboard_ascend_npu.operators import Operators
from baseboard_ascend_npu.support import CAPABILITIES, Available, choose_way, reasons_against
from baseboard_ascend_npu.swapping import Swapper


class AscendBackend:
    """One NPU. After :meth:`close` every other hook raises ``BackendUnavailable``."""

    def __init__(self, device: torch.device, operators: Operators, *, gqa_64: bool) -> None:
        self._device: torch.device | None = device
        self.kernels: Final = KernelFactory(device, operators)
        self._available: Final = Available(
            sinks=operators.fused_with_sinks is not None, paged=operators.paged is not None, gqa_64=gqa_64
        )
        self._upload: Final = Upload(device)
        self._swapper: Final = Swapper(device)

    @hookimpl
    def capabilities(self) -> Capabilities:
        self._open()
        return CAPABILITIES

    @hookimpl
    def torch_device(self) -> torch.device:
        return self._open()

    @hookimpl
    def unsupported(self, kv: KVCacheSpec, attention: AttentionSpec) -> list[str]:
        self._open()
        return reasons_against(kv, attention)

    @hookimpl
    def kv_block_nbytes(self, spec: KVCacheSpec) -> int:
        self._open()
        return sum(plane_nbytes(spec))

    @hookimpl
    def allocate_kv_cache(self, spec: KVCacheSpec, num_blocks: int) -> KVCache:
        """Raises ``Unsupported`` for a pool that fits and is larger than the operators address."""
        device = self._open()
        room = memory.NpuMemory(device)
        with device_faults():
            room.require(num_blocks * self.kv_block_nbytes(spec))
            check_addressable(spec, num_blocks)
            return make_cache(spec, num_blocks, room)

    @hookimpl
    def allocate_host_kv_cache(self, like: KVCache, num_blocks: int) -> KVCache:
        self._open()
        return make_cache(like.spec, num_blocks, PinnedHost())

    @hookimpl
    def copy_blocks(self, cache: KVCache, pairs: NDArray[np.int64]) -> None:
        self._open()
        with device_faults():
            copy_blocks(cache, pairs, self._upload)

    @hookimpl
    def swap_blocks(self, source: KVCache, destination: KVCache, pairs: NDArray[np.int64]) -> Transfer:
        self._open()
        return self._swapper.swap(source, destination, pairs)

    @hookimpl
    def zero_blocks(self, cache: KVCache, blocks: NDArray[np.int64]) -> None:
        self._open()
        with device_faults():
            zero_blocks(cache, blocks, self._upload)

    @hookimpl
    def memory_snapshot(self) -> MemorySnapshot:
        device = self._open()
        with device_faults():
            return memory.snapshot(device)

    @hookimpl
    def reset_peak_memory(self) -> None:
        npu.reset_peak_memory_stats(self._open())

    @hookimpl
    def empty_cache(self) -> None:
        self._open()
        with device_faults():
            npu.empty_cache()

    @hookimpl
    def allocate_host_buffer(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        self._open()
        try:
            numpy_dtype = np.dtype(dtype)
        except TypeError as error:
            raise ValueError(f"dtype {dtype!r} is not a name that numpy knows") from error
        nbytes = int(np.prod(shape, dtype=np.int64)) * numpy_dtype.itemsize
        return PinnedHost().zeros((nbytes,), torch.uint8).numpy().view(numpy_dtype).reshape(shape)

    @hookimpl
    def build_attention_metadata(self, batch: StepBatch, cache: KVCache) -> object:
        """Raises ``ValueError`` for more sequences than the operators take."""
        self._open()
        with device_faults():
            return StepMetadata(batch, cache.spec.block_size, self._upload)

    @hookimpl
    def attention_kernel(self, attention: AttentionSpec, kv: KVCacheSpec) -> AttentionKernel:
        """Raises ``Unsupported`` for what :meth:`unsupported` gives reasons against."""
        self._open()
        reasons = reasons_against(kv, attention)
        if reasons:
            raise Unsupported(reasons)
        with device_faults():
            return self.kernels.make(choose_way(kv, attention, self._available), attention)

    @hookimpl
    def operator_kernel(self, name: str, spec: Mapping[str, Any]) -> OperatorKernel | None:
        """Those of :mod:`baseboard_ascend_npu.fused_operators`; None for every other name."""
        self._open()
        return make_operator(self.kernels.operators, name, spec)

    @hookimpl
    def graph_runner(self, layers: Sequence[LayerKind]) -> GraphRunner | None:
        """None for a model with layers that are gathered: these are told something else in every step."""
        self._open()
        with device_faults():
            ways = [(choose_way(layer.kv, layer.attention, self._available), layer.attention) for layer in layers]
            if not can_capture() or not all(self.kernels.tells_lengths_alone(*way) for way in ways):
                return None
            return NpuGraphRunner()

    @hookimpl
    def synchronize(self) -> None:
        device = self._open()
        with device_faults():
            npu.synchronize(device)

    @hookimpl
    def close(self) -> None:
        if self._device is None:
            return
        self._device = None
        try:
            self._swapper.close()
        except BackendFault:
            return  # the device is lost, and whoever closes after a fault knows it

    def _open(self) -> torch.device:
        if self._device is None:
            raise BackendUnavailable("this ascend_npu backend was closed: open it again to use it")
        return self._device
