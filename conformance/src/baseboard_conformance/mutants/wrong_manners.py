"""Wrong sizes, wrong errors, wrong memory figures, and bad guests."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import (
    BackendUnavailable,
    Capabilities,
    KVCache,
    KVCacheSpec,
    MemorySnapshot,
    Transfer,
    hookimpl,
)
from baseboard.kit.planar import PlanarKVCache
from baseboard_conformance.mutants.plain import PlainBackend


class ForgetsLayers(PlainBackend):
    """``kv_block_nbytes`` counts one layer."""

    @hookimpl
    def kv_block_nbytes(self, spec: KVCacheSpec) -> int:
        return sum(self.plane_sizes(replace(spec, num_layers=1)))


class NotZeroed(PlainBackend):
    """Fresh blocks hold what lay in the memory before."""

    def make_cache(self, spec: KVCacheSpec, num_blocks: int) -> PlanarKVCache:
        cache = super().make_cache(spec, num_blocks)
        for plane in cache.planes:
            plane[-1] = 0xAB
        return cache


class OneBlockShort(PlainBackend):
    """The pool has one block less than was asked for."""

    def make_cache(self, spec: KVCacheSpec, num_blocks: int) -> PlanarKVCache:
        return super().make_cache(spec, max(1, num_blocks - 1))


class UntypedShortage(PlainBackend):
    """Exhausted memory is a MemoryError."""

    def make_cache(self, spec: KVCacheSpec, num_blocks: int) -> PlanarKVCache:
        try:
            return super().make_cache(spec, num_blocks)
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error)) from error


class PromisesMemory(PlainBackend):
    """A pool that does not fit is promised; blocks beyond the real ones do not exist."""

    def make_cache(self, spec: KVCacheSpec, num_blocks: int) -> PlanarKVCache:
        return super().make_cache(spec, min(num_blocks, 4096))


class SharedBuffer(PlainBackend):
    """All host buffers are one."""

    memory: ClassVar[NDArray[np.uint8]] = np.zeros(1 << 20, np.uint8)

    def host_buffer(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self.memory[:nbytes] = 0
        return self.memory[:nbytes].view(dtype).reshape(shape)


class OverReports(PlainBackend):
    """What is allocated is counted twice."""

    def snapshot(self) -> MemorySnapshot:
        shot = super().snapshot()
        return replace(shot, allocated=2 * shot.allocated, peak=2 * shot.peak, reserved=2 * shot.reserved)


class ConstantMemory(PlainBackend):
    """What is allocated never changes."""

    def snapshot(self) -> MemorySnapshot:
        shot = super().snapshot()
        return replace(shot, allocated=1 << 20, reserved=1 << 20, peak=max(shot.peak, 1 << 20))


class PeakForgets(PlainBackend):
    """The peak is what is allocated now."""

    def snapshot(self) -> MemorySnapshot:
        shot = super().snapshot()
        return replace(shot, peak=shot.allocated)


class FreeAboveTotal(PlainBackend):
    """Free memory is more than there is."""

    def snapshot(self) -> MemorySnapshot:
        shot = super().snapshot()
        return replace(shot, free=shot.total + 1)


class SwallowsOptions(PlainBackend):
    """Options that are not known are ignored."""

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Whatever."""


class ClosesAll(PlainBackend):
    """Closing one backend closes all that are open."""

    closed: ClassVar[list[bool]] = []

    @hookimpl
    def close(self) -> None:
        self.closed.append(True)

    def zero(self, cache: KVCache, blocks: NDArray[np.int64]) -> None:
        if self.closed:
            raise BackendUnavailable("the backend is closed")
        super().zero(cache, blocks)


class MovingCapabilities(PlainBackend):
    """Capabilities change from call to call."""

    calls: ClassVar[list[int]] = []

    @hookimpl
    def capabilities(self) -> Capabilities:
        self.calls.append(1)
        return replace(self.can, max_head_size=self.can.max_head_size - 8 * (len(self.calls) > 1))


class ChangesCore(PlainBackend):
    """Replaces a function of the core when it is opened."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        from baseboard.kit import pairs

        pairs.check_blocks = _trusting


def _trusting(blocks: NDArray[Any], num_blocks: int) -> NDArray[np.int64]:
    """In place of the core's check."""
    return blocks.clip(0, num_blocks - 1)


class Crashes(PlainBackend):
    """The process dies in a swap."""

    def swap(self, source: KVCache, destination: KVCache, pairs: NDArray[np.int64]) -> Transfer:
        os.kill(os.getpid(), signal.SIGSEGV)
        raise AssertionError("the signal ends the process")


class Hangs(PlainBackend):
    """A call that never returns."""

    def zero(self, cache: KVCache, blocks: NDArray[np.int64]) -> None:
        while True:
            time.sleep(60)


class Exits(PlainBackend):
    """Leaves by sys.exit when something is not to its liking."""

    def copy(self, cache: KVCache, pairs: NDArray[np.int64]) -> None:
        raise SystemExit(0)
