"""A plain and right backend, made to be broken: every decision is a method of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

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
from baseboard.kit import planar
from baseboard.kit.dtypes import torch_dtype
from baseboard.kit.host_memory import read_host_memory
from baseboard.kit.planar import PlanarKVCache
from baseboard.kit.pool import DeviceMemory, allocate_planes
from baseboard.kit.process_memory import ProcessMemory
from baseboard_conformance.mutants.plain_kernel import Layer, Metadata, PlainKernel

CPU: Final = torch.device("cpu")

CAPABILITIES: Final = Capabilities(
    dtypes=("float32", "bfloat16", "float16"),
    kv_dtypes=("auto",),
    block_sizes=(16, 32, 8, 64, 128, 256, 1),
    head_sizes=None,
    head_size_multiple=8,
    max_head_size=256,
    max_gqa_ratio=None,
    features=frozenset({"sliding_window", "softcap", "alibi", "sinks", "mixed_batch", "non_causal", "value_head_size"}),
    max_seqs=None,
    pinned_host_memory=False,
    communicator="gloo",
)


@dataclass(frozen=True, slots=True)
class Done:
    """A transfer that has landed."""

    nbytes: int

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """Nothing to wait for."""

    def wait_on_stream(self) -> None:
        """Nothing to wait for."""


class PlainBackend:
    """Keys and values of each layer in a plane each. ``Kernel`` and ``can`` are what most mutants replace."""

    Kernel: ClassVar[type[PlainKernel]] = PlainKernel
    can: ClassVar[Capabilities] = CAPABILITIES

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.check_options(options)
        self.process = ProcessMemory()

    def check_options(self, options: Mapping[str, Any]) -> None:
        if options:
            raise BackendUnavailable(f"this backend has no option {', '.join(sorted(options))}")

    @hookimpl
    def capabilities(self) -> Capabilities:
        return self.can

    @hookimpl
    def torch_device(self) -> torch.device:
        return CPU

    @hookimpl
    def unsupported(self, kv: KVCacheSpec, attention: AttentionSpec) -> list[str]:
        return self.reasons(kv, attention)

    @hookimpl
    def kv_block_nbytes(self, spec: KVCacheSpec) -> int:
        return sum(self.plane_sizes(spec))

    @hookimpl
    def allocate_kv_cache(self, spec: KVCacheSpec, num_blocks: int) -> KVCache:
        return self.make_cache(spec, num_blocks)

    @hookimpl
    def allocate_host_kv_cache(self, like: KVCache, num_blocks: int) -> KVCache:
        return self.make_cache(like.spec, num_blocks)

    @hookimpl
    def copy_blocks(self, cache: KVCache, pairs: NDArray[np.int64]) -> None:
        self.copy(cache, pairs)

    @hookimpl
    def swap_blocks(self, source: KVCache, destination: KVCache, pairs: NDArray[np.int64]) -> Transfer:
        return self.swap(source, destination, pairs)

    @hookimpl
    def zero_blocks(self, cache: KVCache, blocks: NDArray[np.int64]) -> None:
        self.zero(cache, blocks)

    @hookimpl
    def memory_snapshot(self) -> MemorySnapshot:
        return self.snapshot()

    @hookimpl
    def reset_peak_memory(self) -> None:
        self.process.reset_peak()

    @hookimpl
    def empty_cache(self) -> None:
        """Torch's host allocator keeps nothing back."""

    @hookimpl
    def allocate_host_buffer(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        return self.host_buffer(shape, dtype)

    @hookimpl
    def build_attention_metadata(self, batch: StepBatch, cache: KVCache) -> object:
        return self.metadata(batch, cache)

    @hookimpl
    def attention_kernel(self, attention: AttentionSpec, kv: KVCacheSpec) -> AttentionKernel:
        reasons = self.reasons(kv, attention)
        if reasons:
            raise Unsupported(reasons)
        return self.Kernel(attention, kv)

    @hookimpl
    def operator_kernel(self, name: str, spec: Mapping[str, Any]) -> OperatorKernel | None:
        del name, spec
        return None

    @hookimpl
    def synchronize(self) -> None:
        """The CPU has done everything already."""

    @hookimpl
    def close(self) -> None:
        """Nothing is held."""

    # --- what can go wrong --------------------------------------------------------------------------------------

    def reasons(self, kv: KVCacheSpec, attention: AttentionSpec) -> list[str]:
        can = self.can
        sizes = range(can.head_size_multiple, can.max_head_size + 1, can.head_size_multiple)
        checks = {
            f"dtype {kv.dtype}": kv.dtype in can.dtypes,
            f"KV dtype {kv.kv_dtype}": kv.kv_dtype in can.kv_dtypes,
            f"block size {kv.block_size}": kv.block_size in can.block_sizes,
            f"head size {kv.head_size}": kv.head_size in sizes,
            f"value head size {kv.head_size_v}": kv.head_size_v in sizes,
            "a layer and a cache that differ": (attention.num_kv_heads, attention.head_size)
            == (kv.num_kv_heads, kv.head_size),
            f"{attention.num_heads} heads over {attention.num_kv_heads} KV heads": attention.num_kv_heads > 0
            and attention.num_heads % attention.num_kv_heads == 0,
            "sliding windows": attention.sliding_window is None or "sliding_window" in can.features,
            "softcaps": attention.softcap is None or "softcap" in can.features,
            "ALiBi": attention.alibi_slopes is None or "alibi" in can.features,
            "sinks": attention.sinks is None or "sinks" in can.features,
        }
        return [f"{what}: not supported" for what, fine in checks.items() if not fine]

    def plane_sizes(self, spec: KVCacheSpec) -> list[int]:
        row = spec.block_size * spec.num_kv_heads * torch_dtype(spec.dtype).itemsize
        return [row * spec.head_size, row * spec.head_size_v] * spec.num_layers

    def make_cache(self, spec: KVCacheSpec, num_blocks: int) -> PlanarKVCache:
        planes = allocate_planes(DeviceMemory(CPU), num_blocks, self.plane_sizes(spec))
        return PlanarKVCache(spec, planes, self.layers(spec, planes))

    def layers(self, spec: KVCacheSpec, planes: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        dtype, slots = torch_dtype(spec.dtype), planes[0].shape[0] * spec.block_size
        rows = [plane.view(dtype).view(slots, spec.num_kv_heads, -1) for plane in planes]
        return tuple(Layer(key, value) for key, value in zip(rows[::2], rows[1::2], strict=True))

    def copy(self, cache: KVCache, pairs: NDArray[np.int64]) -> None:
        planar.copy_blocks(cache, pairs)

    def swap(self, source: KVCache, destination: KVCache, pairs: NDArray[np.int64]) -> Transfer:
        return planar.swap_blocks(source, destination, pairs)

    def zero(self, cache: KVCache, blocks: NDArray[np.int64]) -> None:
        planar.zero_blocks(cache, blocks)

    def snapshot(self) -> MemorySnapshot:
        host, size = read_host_memory(), self.process.read()
        return MemorySnapshot(host.total, host.free, size.current, size.peak, size.current)

    def host_buffer(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        return np.zeros(shape, dtype)

    def metadata(self, batch: StepBatch, cache: KVCache) -> Metadata:
        return Metadata.of(batch, cache.spec.block_size)
