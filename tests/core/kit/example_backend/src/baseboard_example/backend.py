"""The backend: an object whose methods are hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import (
    AttentionSpec,
    Capabilities,
    KVCache,
    KVCacheSpec,
    LayerKind,
    MemorySnapshot,
    StepBatch,
    Transfer,
    Unsupported,
    hookimpl,
)
from baseboard.kit.dtypes import torch_dtype
from baseboard.kit.host_memory import read_host_memory
from baseboard.kit.planar import PlanarKVCache, copy_blocks, swap_blocks, zero_blocks
from baseboard.kit.pool import DeviceMemory, allocate_planes
from baseboard.kit.process_memory import ProcessMemory
from baseboard_example.attention import ExampleKernel, Metadata, make_metadata

CAPABILITIES = Capabilities(
    dtypes=("float32", "bfloat16"),
    kv_dtypes=("auto",),
    block_sizes=(16, 32),
    head_sizes=None,
    head_size_multiple=8,
    max_head_size=256,
    max_gqa_ratio=None,
    features=frozenset({"mixed_batch", "non_causal"}),
    max_seqs=None,
    pinned_host_memory=False,
    communicator="gloo",
)


class ExampleBackend:
    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.process = ProcessMemory()

    @hookimpl
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @hookimpl
    def torch_device(self) -> torch.device:
        return self.device

    @hookimpl
    def unsupported(self, kv: KVCacheSpec, attention: AttentionSpec) -> list[str]:
        head_sizes = range(8, CAPABILITIES.max_head_size + 1, CAPABILITIES.head_size_multiple)
        checks = {
            f"dtype {kv.dtype} is not one of {CAPABILITIES.dtypes}": kv.dtype in CAPABILITIES.dtypes,
            f"KV dtype {kv.kv_dtype} is not auto": kv.kv_dtype == "auto",
            f"block size {kv.block_size} is not one of {CAPABILITIES.block_sizes}": (
                kv.block_size in CAPABILITIES.block_sizes
            ),
            f"head size {kv.head_size} is not a multiple of 8 up to 256": kv.head_size in head_sizes,
            f"value head size {kv.head_size_v} differs from {kv.head_size}": kv.head_size_v == kv.head_size,
            "the layer's KV heads are not those of its cache": (
                (attention.num_kv_heads, attention.head_size) == (kv.num_kv_heads, kv.head_size)
            ),
            f"{attention.num_heads} heads are no multiple of {attention.num_kv_heads} KV heads": (
                attention.num_kv_heads > 0 and attention.num_heads % attention.num_kv_heads == 0
            ),
            "sliding windows are not supported": attention.sliding_window is None and kv.sliding_window is None,
            "softcaps are not supported": attention.softcap is None,
            "ALiBi is not supported": attention.alibi_slopes is None,
            "sinks are not supported": attention.sinks is None,
        }
        return [reason for reason, fine in checks.items() if not fine]

    @hookimpl
    def kv_block_nbytes(self, spec: KVCacheSpec) -> int:
        return sum(plane_nbytes(spec))

    @hookimpl
    def allocate_kv_cache(self, spec: KVCacheSpec, num_blocks: int) -> KVCache:
        planes = allocate_planes(DeviceMemory(self.device), num_blocks, plane_nbytes(spec))
        shape = (num_blocks * spec.block_size, spec.num_kv_heads, spec.head_size)
        views = [plane.view(torch_dtype(spec.dtype)).view(shape) for plane in planes]
        layers = tuple(zip(views[::2], views[1::2], strict=True))
        return PlanarKVCache(spec, planes, layers)

    @hookimpl
    def allocate_host_kv_cache(self, like: KVCache, num_blocks: int) -> KVCache:
        return self.allocate_kv_cache(like.spec, num_blocks)

    @hookimpl
    def copy_blocks(self, cache: KVCache, pairs: NDArray[np.int64]) -> None:
        copy_blocks(cache, pairs)

    @hookimpl
    def swap_blocks(self, source: KVCache, destination: KVCache, pairs: NDArray[np.int64]) -> Transfer:
        return swap_blocks(source, destination, pairs)

    @hookimpl
    def zero_blocks(self, cache: KVCache, blocks: NDArray[np.int64]) -> None:
        zero_blocks(cache, blocks)

    @hookimpl
    def memory_snapshot(self) -> MemorySnapshot:
        host, size = read_host_memory(), self.process.read()
        return MemorySnapshot(host.total, host.free, size.current, size.peak, reserved=size.current)

    @hookimpl
    def reset_peak_memory(self) -> None:
        self.process.reset_peak()

    @hookimpl
    def empty_cache(self) -> None:
        pass

    @hookimpl
    def allocate_host_buffer(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        return np.zeros(shape, dtype)

    @hookimpl
    def build_attention_metadata(self, batch: StepBatch, cache: KVCache) -> Metadata:
        return make_metadata(batch, cache.spec.block_size)

    @hookimpl
    def attention_kernel(self, attention: AttentionSpec, kv: KVCacheSpec) -> ExampleKernel:
        reasons = self.unsupported(kv, attention)
        if reasons:
            raise Unsupported(reasons)
        return ExampleKernel(attention)

    @hookimpl
    def operator_kernel(self, name: str, spec: Mapping[str, Any]) -> None:
        return None  # the core's torch version runs

    @hookimpl
    def graph_runner(self, layers: Sequence[LayerKind]) -> None:
        return None  # nothing is recorded: every step is told kernel by kernel

    @hookimpl
    def synchronize(self) -> None:
        pass

    @hookimpl
    def close(self) -> None:
        pass


def plane_nbytes(spec: KVCacheSpec) -> list[int]:
    """A plane of keys and one of values for every layer."""
    itemsize = torch_dtype(spec.dtype).itemsize
    return [spec.block_size * spec.num_kv_heads * spec.head_size * itemsize] * (2 * spec.num_layers)
