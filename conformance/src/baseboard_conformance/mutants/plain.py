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
from baseboard_conformance.bench import to_torch

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


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One layer's slots: keys ``[N * B, Hkv, D]``, values ``[N * B, Hkv, Dv]``."""

    key: torch.Tensor
    value: torch.Tensor


@dataclass(slots=True, eq=False)
class Metadata:
    """Copies of the step's index arrays."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    tables: NDArray[np.int64]
    slots: NDArray[np.int64]
    block_size: int
    causal: bool

    @classmethod
    def of(cls, batch: StepBatch, block_size: int) -> Metadata:
        arrays = (batch.query_start_loc, batch.seq_lens, batch.block_tables, batch.slot_mapping)
        starts, lengths, tables, slots = (array.astype(np.int64) for array in arrays)
        return cls(starts, lengths, tables, slots, block_size, batch.causal)


class PlainKernel:
    """The formula of ``AttentionSpec``, sequence by sequence, in float32."""

    def __init__(self, attention: AttentionSpec, kv: KVCacheSpec) -> None:
        self.spec = attention
        self.kv = kv

    # --- the contract -------------------------------------------------------------------------------------------

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: Layer, metadata: Metadata) -> None:
        slots = to_torch(self.write_slots(metadata))
        layer.key[slots] = key
        layer.value[slots] = value

    def attend(
        self, query: torch.Tensor, layer: Layer, metadata: Metadata, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        if out is None:
            out = query.new_empty(*query.shape[:2], layer.value.shape[2])
        for sequence in range(len(metadata.lengths)):
            begin, end = int(metadata.starts[sequence]), int(metadata.starts[sequence + 1])
            positions = self.key_positions(metadata, sequence)
            slots = self.key_slots(metadata, sequence, positions)
            length = int(metadata.lengths[sequence])
            p = np.arange(length - (end - begin), length)
            seen = to_torch(self.seen(p[:, None], positions[None, :], metadata))
            key = self.per_head(layer.key[slots].float())
            value = self.per_head(layer.value[slots].float())
            distance = to_torch(positions[None, :] - p[:, None])
            x = self.logits(query[begin:end].float(), key, distance)
            out[begin:end] = self.mix(x, seen, value).to(out.dtype)
        return out

    # --- what can go wrong --------------------------------------------------------------------------------------

    def write_slots(self, metadata: Metadata) -> NDArray[np.int64]:
        return metadata.slots

    def key_positions(self, metadata: Metadata, sequence: int) -> NDArray[np.int64]:
        """Positions of the keys that are gathered."""
        return np.arange(int(metadata.lengths[sequence]))

    def key_slots(self, metadata: Metadata, sequence: int, positions: NDArray[np.int64]) -> torch.Tensor:
        size = metadata.block_size
        blocks = self.table(metadata, sequence)[positions // size]
        return to_torch(blocks * size + positions % size)

    def table(self, metadata: Metadata, sequence: int) -> NDArray[np.int64]:
        return metadata.tables[sequence]

    def per_head(self, rows: torch.Tensor) -> torch.Tensor:
        """``[L, Hkv, D]`` as ``[L, H, D]``."""
        return rows.repeat_interleave(self.spec.num_heads // self.spec.num_kv_heads, dim=1)

    def seen(self, p: NDArray[np.int64], j: NDArray[np.int64], metadata: Metadata) -> NDArray[np.bool_]:
        """Which keys a query sees ``[q, L]``."""
        seen = self.before(p, j) if metadata.causal else np.full(np.broadcast_shapes(p.shape, j.shape), fill_value=True)
        window = self.window(metadata)
        return seen if window is None else seen & (j > p - window)

    def before(self, p: NDArray[np.int64], j: NDArray[np.int64]) -> NDArray[np.bool_]:
        return j <= p

    def window(self, metadata: Metadata) -> int | None:
        return self.spec.sliding_window

    def scale(self) -> float:
        return self.spec.scale

    def slopes(self) -> tuple[float, ...] | None:
        return self.spec.alibi_slopes

    def sinks(self) -> tuple[float, ...] | None:
        return self.spec.sinks

    def logits(self, query: torch.Tensor, key: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
        """``[H, q, L]``; ``distance`` is ``j - p``."""
        x = self.capped(torch.einsum("qhd,lhd->hql", query, key) * self.scale())
        slopes = self.slopes()
        return x if slopes is None else x + torch.tensor(slopes)[:, None, None] * distance

    def capped(self, x: torch.Tensor) -> torch.Tensor:
        cap = self.spec.softcap
        return x if cap is None else cap * torch.tanh(x / cap)

    def mix(self, x: torch.Tensor, seen: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """``[q, H, Dv]``"""
        x = x.masked_fill(~seen, -torch.inf)
        sinks = self.sinks()
        sink = torch.full((len(x), 1, 1), -torch.inf) if sinks is None else torch.tensor(sinks)[:, None, None]
        top = torch.maximum(x.amax(-1, keepdim=True), sink)
        weights = (x - top).exp()
        weights = weights / (weights.sum(-1, keepdim=True) + (sink - top).exp())
        return self.weighted(weights, value)

    def weighted(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return torch.einsum("hql,lhd->qhd", weights, value)


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
