"""Caches of several layers full of random bytes: what block moves are tested on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import AttentionSpec, KVCache, KVCacheSpec
from baseboard_conformance.bench import Bench, plane_bytes, raising_only, require, to_torch
from baseboard_conformance.claims import preferred_head_size, preferred_ratio

Planes = list[NDArray[np.uint8]]


def plain_spec(bench: Bench, num_layers: int = 3) -> KVCacheSpec:
    """What every backend declares: its preferred sizes."""
    size = preferred_head_size(bench.can)
    return KVCacheSpec(num_layers, 2, size, size, bench.can.dtypes[0], bench.can.block_sizes[0])


def plain_attention(bench: Bench) -> AttentionSpec:
    size = preferred_head_size(bench.can)
    return AttentionSpec(2 * preferred_ratio(bench.can), 2, size, size**-0.5)


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """A cache and the bytes that it must hold."""

    name: str
    cache: KVCache
    expected: Planes

    def check(self, bench: Bench, event: str) -> None:
        """Every byte is as expected. Fails naming plane and blocks."""
        for number, (got, right) in enumerate(zip(plane_bytes(bench, self.cache), self.expected, strict=True)):
            wrong = np.flatnonzero((got != right).any(axis=1))
            require(
                not wrong.size,
                f"{event}: the {self.name}'s plane {number} of {len(self.expected)} is wrong in blocks "
                f"{wrong[:8].tolist()} ({wrong.size} of {len(right)})",
            )


def filled(bench: Bench, cache: KVCache, name: str, rng: np.random.Generator) -> Pool:
    """Put random bytes into every block."""
    expected: Planes = []
    for plane in cache.planes:
        content: NDArray[Any] = rng.integers(0, 256, tuple(plane.shape), dtype=np.uint8)
        plane.copy_(to_torch(content).to(plane.device))
        expected.append(content.copy())
    bench.hook.synchronize()
    return Pool(name, cache, expected)


def device_pool(bench: Bench, num_blocks: int, rng: np.random.Generator) -> Pool:
    cache = bench.hook.allocate_kv_cache(spec=plain_spec(bench), num_blocks=num_blocks)
    return filled(bench, cache, "device cache", rng)


def host_pool(bench: Bench, like: Pool, num_blocks: int, rng: np.random.Generator) -> Pool:
    cache = bench.hook.allocate_host_kv_cache(like=like.cache, num_blocks=num_blocks)
    return filled(bench, cache, "host cache", rng)


def move(source: Pool, destination: Pool, pairs: NDArray[np.int64]) -> None:
    """What a copy or a swap of ``pairs`` must do, done to the expected bytes."""
    for read, write in zip(source.expected, destination.expected, strict=True):
        write[pairs[:, 1]] = read[pairs[:, 0]]


def pairs_of(*pairs: tuple[int, int]) -> NDArray[np.int64]:
    return np.array(pairs, np.int64).reshape(-1, 2)


def check_refuses(what: str, action: Any) -> None:
    """``action()`` must raise ``ValueError``."""
    try:
        with raising_only(ValueError, what):
            action()
    except ValueError:
        return
    require(condition=False, message=f"{what} was accepted; right is ValueError before anything is enqueued")
