"""What to copy: from pairs of blocks to as few pieces of memory as possible. Pure: NumPy and numbers.

::

    pairs (5,1) (4,0) (9,7)    sorted by destination   (4,0) (5,1) (9,7)
    runs                       source 4, destination 0, 2 blocks;  source 9, destination 7, 1 block
    descriptors                every run in every plane, planes one after the other
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Blocks that lie side by side in both pools. Arrays are int64 ``[R]``; destinations never overlap."""

    source: NDArray[np.int64]
    destination: NDArray[np.int64]
    count: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlanePair:
    """A plane in both pools: addresses of block 0, and bytes of a block."""

    source: int
    destination: int
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Descriptors:
    """Pieces of memory to copy, in any order. Arrays are uint64 ``[P * R]``, contiguous."""

    source: NDArray[np.uint64]
    destination: NDArray[np.uint64]
    nbytes: NDArray[np.uint64]
    runs: Runs

    def __len__(self) -> int:
        return len(self.nbytes)

    @property
    def total_nbytes(self) -> int:
        return int(self.nbytes.sum())

    def describe(self, index: int) -> str:
        """What descriptor ``index`` was to copy, in words."""
        plane, run = divmod(index, len(self.runs.count))
        first, last = (
            f"{begin[run]} to {begin[run] + self.runs.count[run] - 1}"
            for begin in (self.runs.source, self.runs.destination)
        )
        return f"blocks {first} to blocks {last} of plane {plane}"


def find_runs(pairs: NDArray[np.int64]) -> Runs:
    """Join pairs ``[n, 2]`` (source, destination) that continue each other in both pools. Destinations are unique."""
    ordered = pairs[np.argsort(pairs[:, 1], kind="stable")]
    follows = (np.diff(ordered, axis=0) == 1).all(axis=1)
    first = np.flatnonzero(np.concatenate([np.ones(min(1, len(ordered)), bool), ~follows]))
    count = np.diff(np.append(first, len(ordered)))
    return Runs(ordered[first, 0], ordered[first, 1], count)


def describe_copies(runs: Runs, planes: Sequence[PlanePair]) -> Descriptors:
    """Every run in every plane. Addresses are 64-bit throughout."""
    sizes = np.array([plane.nbytes for plane in planes], np.uint64)[:, None]
    sources, destinations = (
        np.array(addresses, np.uint64)[:, None]
        for addresses in ([plane.source for plane in planes], [plane.destination for plane in planes])
    )
    return Descriptors(
        source=(sources + runs.source.astype(np.uint64) * sizes).ravel(),
        destination=(destinations + runs.destination.astype(np.uint64) * sizes).ravel(),
        nbytes=(runs.count.astype(np.uint64) * sizes).ravel(),
        runs=runs,
    )
