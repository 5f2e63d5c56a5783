"""How fast attention and swaps are, each against what the same device does at best.

Sizes are arguments, so that all of this can be run small and interpreted; a figure means something on a GPU only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from baseboard.contract import KVCacheSpec, KVDType
from baseboard_cuda.backend import CudaBackend
from baseboard_cuda.check.layer import Shape, WrittenLayer


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


def attention_seconds(
    backend: CudaBackend, shape: Shape, dtype: torch.dtype, clock: Clock, kv_dtype: KVDType = "auto"
) -> float:
    """One layer's attention over random keys and values."""
    generator = torch.Generator(backend.torch_device()).manual_seed(0)

    def random(tokens: int, heads: int) -> torch.Tensor:
        size = (shape.sequences * tokens, heads, shape.head_size)
        return torch.randn(size, generator=generator, device=generator.device).to(dtype)

    key, value = (random(shape.length, shape.kv_heads) for _ in range(2))
    layer = WrittenLayer(backend, shape, kv_dtype, key, value)
    query = random(shape.queries, shape.heads)
    return clock.seconds(lambda: layer.attend(query))


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
