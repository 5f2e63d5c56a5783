"""The KV caches of a model, one a group of layers, and the moves that a plan orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from baseboard.contract import BackendHooks, KVCache, KVOp, KVOpKind
from baseboard.runtime.layers import LayerGroup

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class GroupCaches:
    """Where one group's blocks lie."""

    group: LayerGroup
    device: KVCache
    host: KVCache | None


class KVMemory:
    """All groups have the same block ids, so every move is made once in each. Owner: the executor."""

    def __init__(self, hook: BackendHooks, caches: Sequence[GroupCaches]) -> None:
        self._hook = hook
        self.caches = tuple(caches)

    def apply(self, op: KVOp) -> None:
        """Enqueue one operation; whatever is enqueued on the compute stream afterwards finds it done."""
        pairs = np.array([(pair.source, pair.destination) for pair in op.pairs], dtype=np.int64)
        for cache in self.caches:
            self._move(cache, op.kind, pairs)

    def zero(self, blocks: Sequence[int]) -> None:
        """Wipe device blocks in all groups."""
        for cache in self.caches:
            self._hook.zero_blocks(cache=cache.device, blocks=np.array(blocks, dtype=np.int64))

    def time_swap(self, count: int, clock: Callable[[], float]) -> float:
        """Seconds to move ``count`` device blocks out and in again, once warm; for a cache that holds nothing yet."""
        there = np.stack((np.arange(1, count + 1), np.arange(count)), axis=1)
        began = clock()
        for _ in range(2):
            began = clock()
            for cache in self.caches:
                assert cache.host is not None, "asked for by somebody who has host blocks"
                self._hook.swap_blocks(source=cache.device, destination=cache.host, pairs=there).wait()
                back = np.ascontiguousarray(there[:, ::-1])
                self._hook.swap_blocks(source=cache.host, destination=cache.device, pairs=back).wait()
        return clock() - began

    def _move(self, cache: GroupCaches, kind: KVOpKind, pairs: NDArray[np.int64]) -> None:
        if kind is KVOpKind.COPY:
            self._hook.copy_blocks(cache=cache.device, pairs=pairs)
            return
        assert cache.host is not None, "the scheduler swaps only where there are host blocks"
        source, destination = (cache.device, cache.host) if kind is KVOpKind.SWAP_OUT else (cache.host, cache.device)
        self._hook.swap_blocks(source=source, destination=destination, pairs=pairs).wait_on_stream()
