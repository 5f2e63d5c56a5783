"""Wrong block moves: copy, swap, zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import KVCache, StepBatch, Transfer
from baseboard.kit import planar
from baseboard.kit.pairs import check_copy_pairs
from baseboard.kit.planar import PlanarKVCache
from baseboard_conformance.mutants.plain import Done, PlainBackend
from baseboard_conformance.mutants.plain_kernel import Metadata

Pairs = NDArray[np.int64]


def _part(cache: KVCache, planes: slice) -> PlanarKVCache:
    return PlanarKVCache(cache.spec, tuple(cache.planes)[planes], ())


def _move(source: KVCache, destination: KVCache, pairs: Pairs) -> None:
    """Without any check, one pair after the other."""
    for read, write in zip(source.planes, destination.planes, strict=True):
        for a, b in pairs.tolist():
            write[b] = read[a]


class CopyFirstLayer(PlainBackend):
    """A copy leaves out all layers but the first."""

    def copy(self, cache: KVCache, pairs: Pairs) -> None:
        planar.copy_blocks(_part(cache, slice(2)), pairs)


class CopyKeysOnly(PlainBackend):
    """A copy leaves out the values."""

    def copy(self, cache: KVCache, pairs: Pairs) -> None:
        planar.copy_blocks(_part(cache, slice(None, None, 2)), pairs)


class CopyBackwards(PlainBackend):
    """Pairs are read as (destination, source)."""

    def copy(self, cache: KVCache, pairs: Pairs) -> None:
        check_copy_pairs(pairs, cache.num_blocks)
        _move(cache, cache, pairs[:, ::-1])


class CopyLate(PlainBackend):
    """A copy is done when the next one comes or the step is built."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.late: list[Callable[[], None]] = []

    def copy(self, cache: KVCache, pairs: Pairs) -> None:
        self.catch_up()
        self.late.append(partial(planar.copy_blocks, cache, pairs.copy()))

    def metadata(self, batch: StepBatch, cache: KVCache) -> Metadata:
        self.catch_up()
        return super().metadata(batch, cache)

    def catch_up(self) -> None:
        while self.late:
            self.late.pop(0)()


class CopyChains(PlainBackend):
    """A list in which a block is source and destination is done in some order."""

    def copy(self, cache: KVCache, pairs: Pairs) -> None:
        both = np.intersect1d(pairs[:, 0], pairs[:, 1]) if len(pairs) else pairs
        if len(both):
            _move(cache, cache, pairs)
        else:
            planar.copy_blocks(cache, pairs)


class CopyChecksLate(PlainBackend):
    """A wrong list is refused after its first pairs were copied."""

    def copy(self, cache: KVCache, pairs: Pairs) -> None:
        for pair in pairs:
            planar.copy_blocks(cache, pair[None])
        planar.copy_blocks(cache, pairs)


class CopyFew(PlainBackend):
    """Pairs beyond the first 512 are lost."""

    def copy(self, cache: KVCache, pairs: Pairs) -> None:
        planar.copy_blocks(cache, pairs[:512] if len(pairs) > 512 else pairs)


class SwapFirstLayer(PlainBackend):
    """A swap leaves out all layers but the first."""

    def swap(self, source: KVCache, destination: KVCache, pairs: Pairs) -> Transfer:
        done = planar.swap_blocks(_part(source, slice(2)), _part(destination, slice(2)), pairs)
        return Done(done.nbytes * len(source.planes) // 2)


class SwapNegative(PlainBackend):
    """Negative ids count from the end, as in Python."""

    def swap(self, source: KVCache, destination: KVCache, pairs: Pairs) -> Transfer:
        fixed = pairs.copy()
        for column, cache in enumerate((source, destination)):
            negative = fixed[:, column] < 0
            fixed[negative, column] += cache.num_blocks
        return planar.swap_blocks(source, destination, fixed)


class SwapBytesOfOneLayer(PlainBackend):
    """nbytes counts one layer."""

    def swap(self, source: KVCache, destination: KVCache, pairs: Pairs) -> Transfer:
        return Done(planar.swap_blocks(source, destination, pairs).nbytes // source.spec.num_layers)


class NeverDone(PlainBackend):
    """A transfer of nothing is never done."""

    def swap(self, source: KVCache, destination: KVCache, pairs: Pairs) -> Transfer:
        made = planar.swap_blocks(source, destination, pairs)
        return made if len(pairs) else Pending(0, lambda: None)


@dataclass(slots=True, eq=False)
class Pending:
    """A transfer that somebody has to carry out."""

    nbytes: int
    carry_out: Callable[[], None]
    landed: bool = False

    def done(self) -> bool:
        return self.landed

    def wait(self) -> None:
        if not self.landed:
            self.carry_out()
            self.landed = True

    def wait_on_stream(self) -> None:
        self.wait()


@dataclass(slots=True, eq=False)
class Careless(Pending):
    """Says that it is done without having been carried out."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """Not waited for."""

    def wait_on_stream(self) -> None:
        """Not waited for."""


@dataclass(slots=True, eq=False)
class StreamForgotten(Pending):
    """The host's wait works, the stream's does not."""

    def wait_on_stream(self) -> None:
        """Forgotten."""


class Lazy(PlainBackend):
    """Transfers are carried out when somebody waits; the base of the mutants below."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.under_way: list[Callable[[], object]] = []

    def swap(self, source: KVCache, destination: KVCache, pairs: Pairs) -> Transfer:
        planar.swap_blocks(source, destination, pairs[:0])
        nbytes = len(pairs) * sum(plane.shape[1] for plane in source.planes)
        self.under_way.append(partial(planar.swap_blocks, source, destination, pairs.copy()))
        return self.transfer(nbytes)

    def transfer(self, nbytes: int) -> Transfer:
        return Pending(nbytes, self.land)

    def land(self) -> None:
        while self.under_way:
            self.under_way.pop(0)()


class SwapNotWaited(Lazy):
    """wait() returns at once; the transfer is carried out with the one after the next."""

    def swap(self, source: KVCache, destination: KVCache, pairs: Pairs) -> Transfer:
        while len(self.under_way) > 1:
            self.under_way.pop(0)()
        return super().swap(source, destination, pairs)

    def transfer(self, nbytes: int) -> Transfer:
        return Careless(nbytes, lambda: None)


class SwapLastFirst(Lazy):
    """Transfers that are waited for together are carried out last in, first out."""

    def land(self) -> None:
        while self.under_way:
            self.under_way.pop()()


class StreamDoesNotWait(Lazy):
    """``wait_on_stream`` does nothing."""

    def transfer(self, nbytes: int) -> Transfer:
        return StreamForgotten(nbytes, self.land)


class ZeroKeysOnly(PlainBackend):
    """Wiping leaves the values."""

    def zero(self, cache: KVCache, blocks: NDArray[np.int64]) -> None:
        planar.zero_blocks(_part(cache, slice(None, None, 2)), blocks)


class ZeroNegative(PlainBackend):
    """Block -1 is the last one."""

    def zero(self, cache: KVCache, blocks: NDArray[np.int64]) -> None:
        planar.zero_blocks(cache, np.where(blocks < 0, blocks + cache.num_blocks, blocks))
