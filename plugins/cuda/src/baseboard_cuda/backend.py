"""The CUDA backend's hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import (
    AttentionKernel,
    AttentionSpec,
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
from baseboard.kit.support import reasons_against
from baseboard_cuda.attention import PagedAttention
from baseboard_cuda.blocks import copy_blocks, zero_blocks
from baseboard_cuda.cache import make_cache, pooled
from baseboard_cuda.chip import Chip
from baseboard_cuda.engines import choice
from baseboard_cuda.faults import device_faults
from baseboard_cuda.graphs import CudaGraphRunner
from baseboard_cuda.layout import BlockLayout, block_layout
from baseboard_cuda.metadata import CudaMetadata, make_metadata
from baseboard_cuda.operators import make_operator
from baseboard_cuda.options import Options
from baseboard_cuda.support import capabilities
from baseboard_cuda.swap.swapper import checked_swap


class CudaBackend:
    """One GPU, or the interpreter. After :meth:`close` every other hook raises ``BackendUnavailable``."""

    def __init__(self, chip: Chip, options: Options) -> None:
        self._chip: Chip | None = chip
        self._promise: Final = capabilities(chip, options)
        self._options: Final = options

    @hookimpl
    def capabilities(self) -> Capabilities:
        self._open()
        return self._promise

    @property
    def options(self) -> Options:
        return self._options

    @hookimpl
    def torch_device(self) -> torch.device:
        return self._open().device

    @hookimpl
    def unsupported(self, kv: KVCacheSpec, attention: AttentionSpec) -> list[str]:
        chip = self._open()
        against = choice.reasons_against(self._options.attention, chip.engines, attention, kv)
        return [*reasons_against(self._promise, kv, attention), *against]

    @hookimpl
    def kv_block_nbytes(self, spec: KVCacheSpec) -> int:
        self._open()
        return self._layout(spec).nbytes * spec.num_layers

    @hookimpl
    def allocate_kv_cache(self, spec: KVCacheSpec, num_blocks: int) -> KVCache:
        chip = self._open()
        with device_faults("allocating a KV cache"):
            return make_cache(spec, self._layout(spec), num_blocks, chip.memory)

    @hookimpl
    def allocate_host_kv_cache(self, like: KVCache, num_blocks: int) -> KVCache:
        chip = self._open()
        return make_cache(like.spec, self._layout(like.spec), num_blocks, chip.host_pools)

    @hookimpl
    def copy_blocks(self, cache: KVCache, pairs: NDArray[np.int64]) -> None:
        chip = self._open()
        with device_faults("copying blocks"):
            copy_blocks(pooled(cache, "cache"), pairs, chip.upload)

    @hookimpl
    def swap_blocks(self, source: KVCache, destination: KVCache, pairs: NDArray[np.int64]) -> Transfer:
        chip = self._open()
        return chip.swapper.start(checked_swap(pooled(source, "source"), pooled(destination, "destination"), pairs))

    @hookimpl
    def zero_blocks(self, cache: KVCache, blocks: NDArray[np.int64]) -> None:
        chip = self._open()
        with device_faults("wiping blocks"):
            zero_blocks(pooled(cache, "cache"), blocks, chip.upload)

    @hookimpl
    def memory_snapshot(self) -> MemorySnapshot:
        chip = self._open()
        with device_faults("reading its memory"):
            return chip.meter.snapshot()

    @hookimpl
    def reset_peak_memory(self) -> None:
        self._open().meter.reset_peak()

    @hookimpl
    def empty_cache(self) -> None:
        chip = self._open()
        with device_faults("emptying its cache"):
            chip.meter.empty_cache()

    @hookimpl
    def allocate_host_buffer(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        chip = self._open()
        try:
            numpy_dtype = np.dtype(dtype)
        except TypeError as error:
            raise ValueError(f"dtype {dtype!r} is not a name that numpy knows") from error
        nbytes = int(np.prod(shape, dtype=np.int64)) * numpy_dtype.itemsize
        return chip.host_buffers.zeros((nbytes,), torch.uint8).numpy().view(numpy_dtype).reshape(shape)

    @hookimpl
    def build_attention_metadata(self, batch: StepBatch, cache: KVCache) -> CudaMetadata:
        chip = self._open()
        with device_faults("bringing a step's arrays to it"):
            return make_metadata(batch, cache.spec.block_size, chip.upload)

    @hookimpl
    def attention_kernel(self, attention: AttentionSpec, kv: KVCacheSpec) -> AttentionKernel:
        """Raises ``Unsupported`` for what :meth:`unsupported` gives reasons against."""
        chip = self._open()
        reasons = self.unsupported(kv, attention)
        if reasons:
            raise Unsupported(reasons)
        own = PagedAttention(attention, kv, self._layout(kv), chip)
        chosen = self.attention_engine(attention, kv)
        if self._options.attention != choice.OWN:
            choice.tell(chosen, attention, kv)
        return own if chosen.engine is None else choice.JoinedAttention(own, chosen.engine.make(attention, kv))

    def attention_engine(self, attention: AttentionSpec, kv: KVCacheSpec) -> choice.Choice:
        """What computes the attention of such layers."""
        return choice.choose(self._options.attention, self._open().engines, attention, kv)

    @hookimpl
    def operator_kernel(self, name: str, spec: Mapping[str, Any]) -> OperatorKernel | None:
        """Those of :mod:`baseboard_cuda.operators`; None for every other name."""
        self._open()
        return make_operator(name, spec)

    @hookimpl
    def graph_runner(self, layers: Sequence[LayerKind]) -> GraphRunner | None:
        """None in the interpreter; and where another engine attends, which plans each step on the host."""
        chip = self._open()
        planned = any(self.attention_engine(layer.attention, layer.kv).engine is not None for layer in layers)
        if chip.device.type != "cuda" or planned:
            return None
        with device_faults("making room for graphs"):
            return CudaGraphRunner(chip.device)

    @hookimpl
    def synchronize(self) -> None:
        chip = self._open()
        with device_faults("waiting for it"):
            chip.synchronize()

    @hookimpl
    def close(self) -> None:
        """Waits for swaps under way, whose memory would otherwise be freed beneath them; a lost GPU has none."""
        chip, self._chip = self._chip, None
        if chip is not None:
            chip.swapper.close()

    def _open(self) -> Chip:
        if self._chip is None:
            raise BackendUnavailable("this CUDA backend was closed: open it again to use it")
        return self._chip

    def _layout(self, spec: KVCacheSpec) -> BlockLayout:
        return block_layout(spec, self._options.fp8_scale)
