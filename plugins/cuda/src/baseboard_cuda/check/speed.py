"""How fast attention and swaps are, each against what the same device does at best.

Sizes are arguments, so that all of this can be run small and interpreted; a figure means something on a GPU only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from baseboard.contract import AttentionSpec, KVCacheSpec, KVDType, StepBatch
from baseboard.kit.dtypes import dtype_name
from baseboard_cuda.backend import CudaBackend


class Clock(Protocol):
    def seconds(self, action: Callable[[], object]) -> float:
        """How long the device takes for ``action``, at best of some times."""
        ...


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement beside the one it is compared with, in the same unit."""

    name: str
    value: float
    best: float
    unit: str
    target: float | None  #: least share of ``best``; None: nothing is demanded

    @property
    def share(self) -> float:
        return self.value / self.best

    @property
    def passed(self) -> bool:
        return self.target is None or self.share >= self.target


@dataclass(frozen=True, slots=True)
class Shape:
    """Sequences of equal length, of which the last ``queries`` tokens are computed."""

    sequences: int
    length: int
    queries: int
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    block_size: int = 16

    @property
    def blocks(self) -> int:
        return 1 + self.sequences * -(-self.length // self.block_size)

    def specs(self, dtype: torch.dtype, kv_dtype: KVDType = "auto") -> tuple[AttentionSpec, KVCacheSpec]:
        attention = AttentionSpec(self.heads, self.kv_heads, self.head_size, self.head_size**-0.5)
        size = self.head_size
        return attention, KVCacheSpec(1, self.kv_heads, size, size, dtype_name(dtype), self.block_size, kv_dtype)

    def batch(self) -> StepBatch:
        """Blocks in random order, as a pool has them after a while."""
        columns = -(-self.length // self.block_size)
        order = 1 + np.random.default_rng(0).permutation(self.sequences * columns)
        tables = order.reshape(self.sequences, columns).astype(np.int32)
        positions = np.arange(self.length - self.queries, self.length)
        slots = tables[:, positions // self.block_size].astype(np.int64) * self.block_size + positions % self.block_size
        return StepBatch(
            query_start_loc=np.arange(self.sequences + 1, dtype=np.int32) * self.queries,
            seq_lens=np.full(self.sequences, self.length, np.int32),
            block_tables=tables,
            slot_mapping=slots.ravel(),
            positions=np.tile(positions, self.sequences),
            num_decodes=self.sequences if self.queries == 1 else 0,
            max_query_len=self.queries,
            max_seq_len=self.length,
        )


def attention_seconds(
    backend: CudaBackend, shape: Shape, dtype: torch.dtype, clock: Clock, kv_dtype: KVDType = "auto"
) -> float:
    """One layer's attention over a pool of random numbers."""
    attention, kv = shape.specs(dtype, kv_dtype)
    device = backend.torch_device()
    cache = backend.allocate_kv_cache(kv, shape.blocks)
    for plane in cache.planes:
        plane.view(torch.float16).normal_()  # any bits that are finite will do
    kernel = backend.attention_kernel(attention, kv)
    metadata = backend.build_attention_metadata(shape.batch(), cache)
    query = torch.randn(shape.sequences * shape.queries, shape.heads, shape.head_size, device=device).to(dtype)
    return clock.seconds(lambda: kernel.attend(query, cache.layer(0), metadata))


@dataclass(frozen=True, slots=True)
class Candidate:
    """Who is measured: our own kernel has a target, others are measured beside it."""

    backend: CudaBackend
    target: float | None

    def name(self, shape: Shape, dtype: torch.dtype) -> str:
        return self.backend.attention_engine(*shape.specs(dtype)).name


def decode(candidate: Candidate, shape: Shape, dtype: torch.dtype, clock: Clock) -> Figure:
    """Bytes of keys and values read a second, against those of a plain copy."""
    backend = candidate.backend
    seconds = attention_seconds(backend, shape, dtype, clock)
    read = 2 * shape.sequences * shape.length * shape.kv_heads * shape.head_size * dtype.itemsize
    memory = torch.empty(read, dtype=torch.uint8, device=backend.torch_device())
    target = torch.empty_like(memory)
    copied = 2 * read / clock.seconds(lambda: target.copy_(memory))
    name = f"decode by {candidate.name(shape, dtype)}, {shape}"
    return Figure(name, read / seconds / 1e9, copied / 1e9, "GB/s", candidate.target)


def prefill(candidate: Candidate, shape: Shape, dtype: torch.dtype, clock: Clock, side: int) -> Figure:
    """Multiplications and additions under the causal mask, against those of one square matrix product."""
    backend = candidate.backend
    seconds = attention_seconds(backend, shape, dtype, clock)
    pairs = shape.sequences * (shape.queries * shape.length - shape.queries * (shape.queries - 1) // 2)
    flops = 4 * pairs * shape.heads * shape.head_size
    square = torch.randn(side, side, device=backend.torch_device()).to(dtype)
    best = 2 * side**3 / clock.seconds(lambda: square @ square)
    name = f"prefill by {candidate.name(shape, dtype)}, {shape}"
    return Figure(name, flops / seconds / 1e12, best / 1e12, "TFLOP/s", candidate.target)


def swap(backend: CudaBackend, spec: KVCacheSpec, num_blocks: int, clock: Clock) -> Figure:
    """Half of the blocks out, half of them in, at once and in random order; against pinned copies of as many bytes."""
    device_cache = backend.allocate_kv_cache(spec, num_blocks)
    host_cache = backend.allocate_host_kv_cache(device_cache, num_blocks)
    order = np.random.default_rng(0).permutation(num_blocks)
    out, back = np.array_split(np.stack([order, order], axis=1), 2)

    def both() -> None:
        transfers = [
            backend.swap_blocks(device_cache, host_cache, out),
            backend.swap_blocks(host_cache, device_cache, back),
        ]
        for transfer in transfers:
            transfer.wait_on_stream()

    moved = num_blocks * backend.kv_block_nbytes(spec)
    swapped = moved / clock.seconds(both)
    copied = moved / clock.seconds(_plain_copies(backend.torch_device(), moved // 2))
    return Figure(f"swap of {num_blocks} blocks, both ways", swapped / 1e9, copied / 1e9, "GB/s", 0.90)


def _plain_copies(device: torch.device, nbytes: int) -> Callable[[], None]:
    """One large pinned copy each way, side by side."""
    pinned = device.type != "cpu"
    there, here = (torch.empty(nbytes, dtype=torch.uint8, device=device) for _ in range(2))
    source, target = (torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(2))

    def one_by_one() -> None:
        there.copy_(source)
        target.copy_(here)

    if not pinned:
        return one_by_one
    streams = [torch.cuda.Stream(device) for _ in range(2)]

    def copies() -> None:
        current = torch.cuda.current_stream(device)
        for stream, to, come in zip(streams, (there, target), (source, here), strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                to.copy_(come, non_blocking=True)
            current.wait_stream(stream)

    return copies
