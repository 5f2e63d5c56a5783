"""``zero_blocks``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from baseboard_conformance.bench import Bench
from baseboard_conformance.case import Case
from baseboard_conformance.cases.simple import Promise, promised
from baseboard_conformance.pools import check_refuses, device_pool


def _all_layers(bench: Bench) -> None:
    pool = device_pool(bench, 8, bench.rng)
    blocks = np.array([7, 2, 3], np.int64)
    bench.hook.zero_blocks(cache=pool.cache, blocks=blocks)
    for plane in pool.expected:
        plane[blocks] = 0
    pool.check(bench, "zeroing blocks 7, 2 and 3")


def _nothing(bench: Bench) -> None:
    pool = device_pool(bench, 3, bench.rng)
    bench.hook.zero_blocks(cache=pool.cache, blocks=np.zeros(0, np.int64))
    pool.check(bench, "zeroing no blocks")


def _illegal(bench: Bench) -> None:
    pool = device_pool(bench, 4, bench.rng)
    for blocks in ([1, 4], [1, -1]):
        array = np.array(blocks, np.int64)
        check_refuses(
            f"zero_blocks of {blocks} of 4 blocks", partial(bench.hook.zero_blocks, cache=pool.cache, blocks=array)
        )
        pool.check(bench, f"after zero_blocks of {blocks} was refused")


_PROMISES: Final = {
    "zero/all_layers": Promise("fills blocks with zeros in all layers, and no others", _all_layers),
    "zero/nothing": Promise("a list of no blocks changes nothing", _nothing),
    "zero/illegal": Promise("ValueError for an id that is out of range, with nothing changed", _illegal),
}


def cases() -> Iterator[Case]:
    yield from promised("the planes' bytes", _PROMISES)
