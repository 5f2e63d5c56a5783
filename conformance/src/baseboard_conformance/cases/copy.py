"""``copy_blocks``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import KVCache
from baseboard_conformance.bench import Bench, require
from baseboard_conformance.case import Case, Profile
from baseboard_conformance.cases.simple import Promise, promised
from baseboard_conformance.pools import check_refuses, device_pool, move, pairs_of


def _all_layers(bench: Bench) -> None:
    """Copies to several blocks, one source twice; all planes, nothing else."""
    pool = device_pool(bench, 9, bench.rng)
    pairs = pairs_of((3, 5), (3, 1), (8, 2), (7, 6))
    given = pairs.copy()
    bench.hook.copy_blocks(cache=pool.cache, pairs=pairs)
    move(pool, pool, pairs)
    pool.check(bench, "copy of 3->5, 3->1, 8->2, 7->6")
    require(np.array_equal(pairs, given), "copy_blocks changed the array of pairs")


def _in_order(bench: Bench) -> None:
    """Two calls run one after the other: what the first wrote, the second reads."""
    pool = device_pool(bench, 6, bench.rng)
    for pairs in (pairs_of((1, 2)), pairs_of((2, 3), (4, 5)), pairs_of((3, 0))):
        bench.hook.copy_blocks(cache=pool.cache, pairs=pairs)
        move(pool, pool, pairs)
    pool.check(bench, "copies 1->2, then 2->3 and 4->5, then 3->0")


def _nothing(bench: Bench) -> None:
    pool = device_pool(bench, 4, bench.rng)
    bench.hook.copy_blocks(cache=pool.cache, pairs=np.zeros((0, 2), np.int64))
    pool.check(bench, "copy of no pairs")


def _many(bench: Bench) -> None:
    pool = device_pool(bench, 2100, bench.rng)
    blocks = bench.rng.permutation(2100)[:2048].astype(np.int64)
    pairs = np.ascontiguousarray(blocks.reshape(2, -1).T)
    bench.hook.copy_blocks(cache=pool.cache, pairs=pairs)
    move(pool, pool, pairs)
    pool.check(bench, f"copy of {len(pairs)} pairs in random order")


def _illegal(bench: Bench) -> None:
    """Refused lists leave everything as it was."""
    pool = device_pool(bench, 6, bench.rng)
    lists = {
        "a source beyond the pool": pairs_of((1, 2), (6, 3)),
        "a destination beyond the pool": pairs_of((1, 2), (3, 6)),
        "a negative source": pairs_of((1, 2), (-1, 3)),
        "a negative destination": pairs_of((1, 2), (3, -1)),
        "a destination twice": pairs_of((1, 2), (3, 2)),
        "a block that is source and destination": pairs_of((1, 2), (2, 3)),
        "a block copied onto itself": pairs_of((1, 2), (3, 3)),
    }
    for what, pairs in lists.items():
        check_refuses(f"copy_blocks with {what} ({pairs.tolist()})", partial(_copy, bench, pool.cache, pairs))
        pool.check(bench, f"after copy_blocks with {what} was refused")


def _copy(bench: Bench, cache: KVCache, pairs: NDArray[np.int64]) -> None:
    bench.hook.copy_blocks(cache=cache, pairs=pairs)


_PROMISES: Final = {
    "copy/all_layers": Promise("copies blocks in all layers, keys and values", _all_layers),
    "copy/in_order": Promise("calls are enqueued in stream order", _in_order),
    "copy/nothing": Promise("a list of no pairs changes nothing", _nothing),
    "copy/many": Promise("any number of pairs in any order", _many, Profile.CORE),
    "copy/illegal": Promise(
        "ValueError before anything is enqueued: id out of range, destination repeated, source and destination",
        _illegal,
    ),
}


def cases() -> Iterator[Case]:
    yield from promised("the planes' bytes, moved in NumPy", _PROMISES)
