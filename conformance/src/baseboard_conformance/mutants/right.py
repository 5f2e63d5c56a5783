"""Right backends that look different: the suite must let them pass."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import KVCache, KVCacheSpec, StepBatch, Transfer
from baseboard.kit import planar
from baseboard.kit.dtypes import torch_dtype
from baseboard.kit.pairs import check_swap_pairs
from baseboard_conformance.bench import to_torch
from baseboard_conformance.mutants.plain import Done, PlainBackend
from baseboard_conformance.mutants.plain_kernel import Layer, Metadata, PlainKernel


class Plain(PlainBackend):
    """The base of all mutants, unbroken."""


class SplitKeys(PlainBackend):
    """Keys in parts of 48, each with a maximum and a sum of its own, put together at the end."""

    class Kernel(PlainKernel):
        def mix(self, x: torch.Tensor, seen: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            x = x.masked_fill(~seen, -torch.inf)
            sinks = self.sinks()
            top = torch.full((*x.shape[:2], 1), -torch.inf) if sinks is None else _column(sinks, x)
            total = torch.zeros_like(top) if sinks is None else torch.ones_like(top)
            result = torch.zeros(x.shape[1], x.shape[0], value.shape[2])
            for at in range(0, x.shape[2], 48):
                part = x[..., at : at + 48]
                new = torch.maximum(top, part.amax(-1, keepdim=True))
                safe = torch.where(torch.isfinite(new), new, 0.0)
                weights, fade = (part - safe).exp(), (top - safe).exp()
                total = total * fade + weights.sum(-1, keepdim=True)
                result = result * fade.permute(1, 0, 2) + self.weighted(weights, value[at : at + 48])
                top = new
            return result / total.permute(1, 0, 2)


def _column(sinks: tuple[float, ...], x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(sinks)[:, None, None].expand(*x.shape[:2], 1)


class KeyColumns(PlainBackend):
    """Keys of a block are stored column-major: ``[N, Hkv, D, B]``, as matrix units like them."""

    class Kernel(PlainKernel):
        def write(self, key: torch.Tensor, value: torch.Tensor, layer: Layer, metadata: Metadata) -> None:
            slots = to_torch(metadata.slots)
            blocks, offsets = slots // metadata.block_size, slots % metadata.block_size
            layer.key[blocks, :, :, offsets] = key
            layer.value[slots] = value

        def attend(
            self, query: torch.Tensor, layer: Layer, metadata: Metadata, out: torch.Tensor | None = None
        ) -> torch.Tensor:
            rows = layer.key.permute(0, 3, 1, 2).flatten(0, 1)
            return super().attend(query, Layer(rows, layer.value), metadata, out)

    def layers(self, spec: KVCacheSpec, planes: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        plain = super().layers(spec, planes)
        shape = (planes[0].shape[0], spec.num_kv_heads, spec.head_size, spec.block_size)
        return tuple(Layer(layer.key.reshape(shape), layer.value) for layer in plain)


class OnePlane(PlainBackend):
    """All layers' keys and values of a block lie together, in one plane, with padding behind them."""

    def plane_sizes(self, spec: KVCacheSpec) -> list[int]:
        used = sum(super().plane_sizes(spec))
        return [-(-used // 256) * 256 + 256]

    def layers(self, spec: KVCacheSpec, planes: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        sizes, dtype, at = super().plane_sizes(spec), torch_dtype(spec.dtype), 0
        rows: list[torch.Tensor] = []
        for size in sizes:
            part = planes[0][:, at : at + size].view(dtype)
            shape = (len(part), spec.block_size, spec.num_kv_heads, -1)
            rows.append(part.view(shape))
            at += size
        return tuple(BlockLayer(key, value) for key, value in zip(rows[::2], rows[1::2], strict=True))

    class Kernel(PlainKernel):
        def write(self, key: torch.Tensor, value: torch.Tensor, layer: Any, metadata: Metadata) -> None:
            slots = to_torch(metadata.slots)
            blocks, offsets = slots // metadata.block_size, slots % metadata.block_size
            layer.key[blocks, offsets] = key
            layer.value[blocks, offsets] = value

        def attend(
            self, query: torch.Tensor, layer: Any, metadata: Metadata, out: torch.Tensor | None = None
        ) -> torch.Tensor:
            flat = Layer(layer.key.flatten(0, 1), layer.value.flatten(0, 1))
            return super().attend(query, flat, metadata, out)


@dataclass(frozen=True, slots=True, eq=False)
class BlockLayer:
    """One layer's keys and values, ``[N, B, Hkv, D]`` with gaps between blocks."""

    key: torch.Tensor
    value: torch.Tensor


class AsynchronousSwaps(PlainBackend):
    """Transfers run on a thread, first in, first out; the compute runs in the same queue behind them where it must."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.engine = CopyEngine()

    def swap(self, source: KVCache, destination: KVCache, pairs: NDArray[np.int64]) -> Transfer:
        ids = check_swap_pairs(pairs, source.num_blocks, destination.num_blocks).copy()
        if not len(ids):
            return Done(0)
        nbytes = len(ids) * sum(int(plane.shape[1]) for plane in source.planes)
        return UnderWay(nbytes, self.engine.put(partial(planar.swap_blocks, source, destination, ids)))

    def copy(self, cache: KVCache, pairs: NDArray[np.int64]) -> None:
        self.engine.drain()
        super().copy(cache, pairs)

    def zero(self, cache: KVCache, blocks: NDArray[np.int64]) -> None:
        self.engine.drain()
        super().zero(cache, blocks)

    def metadata(self, batch: StepBatch, cache: KVCache) -> Metadata:
        self.engine.drain()
        return super().metadata(batch, cache)


@dataclass(slots=True, eq=False)
class CopyEngine:
    """A thread that does one thing after the other."""

    todo: queue.SimpleQueue[tuple[Callable[[], object], threading.Event]] = field(
        default_factory=queue.SimpleQueue[tuple[Callable[[], object], threading.Event]]
    )

    def __post_init__(self) -> None:
        threading.Thread(target=self._work, daemon=True).start()

    def put(self, action: Callable[[], object]) -> threading.Event:
        landed = threading.Event()
        self.todo.put((action, landed))
        return landed

    def drain(self) -> None:
        self.put(lambda: None).wait()

    def _work(self) -> None:
        while True:
            action, landed = self.todo.get()
            action()
            landed.set()


@dataclass(frozen=True, slots=True, eq=False)
class UnderWay:
    """A transfer in the engine's queue."""

    nbytes: int
    landed: threading.Event

    def done(self) -> bool:
        return self.landed.is_set()

    def wait(self) -> None:
        self.landed.wait()

    def wait_on_stream(self) -> None:
        self.landed.wait()


class Noisy(PlainBackend):
    """Right, and a bad guest: prints megabytes, changes the folder, takes over signals, reads standard input."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        os.chdir("/")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdin.read()

    def zero(self, cache: KVCache, blocks: NDArray[np.int64]) -> None:
        sys.stdout.write('{"result": 1}\n' * 100_000)
        os.write(1, b"x" * 1_000_000)
        os.write(2, b"\xff" * 1_000_000)
        super().zero(cache, blocks)
