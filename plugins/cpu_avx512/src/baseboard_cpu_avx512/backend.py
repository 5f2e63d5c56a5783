"""The CPU backend's hooks."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import (
    AttentionKernel,
    AttentionSpec,
    BackendUnavailable,
    Capabilities,
    KVCache,
    KVCacheSpec,
    MemorySnapshot,
    OperatorKernel,
    StepBatch,
    Transfer,
    Unsupported,
    hookimpl,
)
from baseboard.kit.pool import DeviceMemory
from baseboard_cpu_avx512.binding import WorkerBinding
from baseboard_cpu_avx512.blocks import BlockMover
from baseboard_cpu_avx512.kernels import Kernels, OwnKernels
from baseboard_cpu_avx512.library import open_library
from baseboard_cpu_avx512.memory import HostMeter, PoolMemory
from baseboard_cpu_avx512.openmp import find_parallel_entry
from baseboard_cpu_avx512.operators import Machine, make_operator
from baseboard_cpu_avx512.settings import Settings

_CPU: Final = torch.device("cpu")


class CpuBackend:
    """One instruction-set level, and one family of attention kernels.

    After :meth:`close` every other hook raises ``BackendUnavailable``.
    """

    def __init__(self, settings: Settings) -> None:
        """Raises ``BackendUnavailable`` where the kernels that were asked for cannot be had."""
        library = open_library()
        self._kernels: Final = _make_kernels(settings, library)
        library.bb_use_openmp(find_parallel_entry(Path(torch.__file__).parent))
        self._settings: Final = settings
        self._library: ctypes.CDLL | None = library
        self._binding: Final = WorkerBinding(library, settings.bound_cores)
        self._mover: Final = BlockMover(library)
        self._memory: Final = PoolMemory()
        self._meter: Final = HostMeter()

    @hookimpl
    def capabilities(self) -> Capabilities:
        self._open()
        return self._kernels.capabilities

    @hookimpl
    def torch_device(self) -> torch.device:
        self._open()
        return _CPU

    @hookimpl
    def unsupported(self, kv: KVCacheSpec, attention: AttentionSpec) -> list[str]:
        self._open()
        return self._kernels.unsupported(kv, attention)

    @hookimpl
    def kv_block_nbytes(self, spec: KVCacheSpec) -> int:
        self._open()
        return self._kernels.block_nbytes(spec)

    @hookimpl
    def allocate_kv_cache(self, spec: KVCacheSpec, num_blocks: int) -> KVCache:
        self._open()
        return self._kernels.make_cache(spec, num_blocks, self._memory)

    @hookimpl
    def allocate_host_kv_cache(self, like: KVCache, num_blocks: int) -> KVCache:
        self._open()
        return self._kernels.make_cache(like.spec, num_blocks, self._memory)

    @hookimpl
    def copy_blocks(self, cache: KVCache, pairs: NDArray[np.int64]) -> None:
        self._open()
        self._mover.copy(cache, pairs, self._threads())

    @hookimpl
    def swap_blocks(self, source: KVCache, destination: KVCache, pairs: NDArray[np.int64]) -> Transfer:
        self._open()
        return self._mover.swap(source, destination, pairs)

    @hookimpl
    def zero_blocks(self, cache: KVCache, blocks: NDArray[np.int64]) -> None:
        self._open()
        self._mover.zero(cache, blocks, self._threads())

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
        """Nothing to do: pools go back to the system with their cache, and torch's host allocator keeps nothing."""
        self._open()

    @hookimpl
    def allocate_host_buffer(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        self._open()
        try:
            numpy_dtype = np.dtype(dtype)
        except TypeError as error:
            raise ValueError(f"dtype {dtype!r} is not a name that numpy knows") from error
        nbytes = int(np.prod(shape, dtype=np.int64)) * numpy_dtype.itemsize
        return DeviceMemory(_CPU).zeros((nbytes,), torch.uint8).numpy().view(numpy_dtype).reshape(shape)

    @hookimpl
    def build_attention_metadata(self, batch: StepBatch, cache: KVCache) -> object:
        del cache  # the step is the same for all caches of its group
        self._open()
        threads = self._threads()
        self._binding.bind(threads)
        return self._kernels.make_metadata(batch, threads)

    @hookimpl
    def attention_kernel(self, attention: AttentionSpec, kv: KVCacheSpec) -> AttentionKernel:
        """Raises ``Unsupported`` for what :meth:`unsupported` gives reasons against."""
        self._open()
        reasons = self._kernels.unsupported(kv, attention)
        if reasons:
            raise Unsupported(reasons)
        return self._kernels.make_attention(attention, kv)

    @hookimpl
    def operator_kernel(self, name: str, spec: Mapping[str, Any]) -> OperatorKernel | None:
        machine = Machine(self._open(), self._settings.level, self._threads)
        return make_operator(machine, name, spec)

    @hookimpl
    def synchronize(self) -> None:
        """Nothing to do: kernels have run when their call returns, and a swap is waited for by its own transfer."""
        self._open()

    @hookimpl
    def close(self) -> None:
        self._library = None
        self._mover.close()

    def _threads(self) -> int:
        """As many as torch uses now, whose threads these are, but never more than there are cores."""
        return min(torch.get_num_threads(), self._settings.max_threads)

    def _open(self) -> ctypes.CDLL:
        if self._library is None:
            raise BackendUnavailable("this cpu_avx512 backend was closed: open it again to use it")
        return self._library


def _make_kernels(settings: Settings, library: ctypes.CDLL) -> Kernels:
    if settings.kernels == "own":
        return OwnKernels(library, settings.level)
    from baseboard_cpu_avx512.ipex.installation import load_operators
    from baseboard_cpu_avx512.ipex.kernels import IpexKernels

    return IpexKernels(load_operators())
