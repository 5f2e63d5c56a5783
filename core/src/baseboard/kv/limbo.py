"""Blocks of a device that does not run its steps in order: what was given back rests until nothing can write to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from baseboard.kv.group import PoolShape
from baseboard.kv.pool import BlockContent, BlockPool


class LimboPool(BlockPool):
    """A pool whose blocks come back only when every step that was planned before they were given back has landed.

    ::

        plan 4  R writes block 7          under way
                R is aborted: 7 rests     "until 4 has landed"
        plan 5  others get other blocks   5 may run before 4 does
        4 lands 7 is free

    A plan's own block moves come after everything planned before, so they need no waiting for. A block that rests and
    is still in the prefix index can be hit: what it holds was computed by a step that has landed.
    """

    def __init__(self, num_blocks: int, content: BlockContent, first: int = 1) -> None:
        super().__init__(num_blocks, content, first)
        self._resting: Final[dict[int, int]] = {}  # block: the step that has to land, never decreasing
        self._planned = -1
        self._landed = -1

    @property
    def writes_come_late(self) -> bool:
        return True

    @property
    def num_coming(self) -> int:
        return len(self._resting)

    def planned(self, step: int) -> None:
        self._planned = step

    def landed(self, step: int) -> None:
        self._landed = step
        for block, until in list(self._resting.items()):
            if until > step:
                break
            del self._resting[block]
            super()._free(block)

    def acquire(self, block: int) -> None:
        if block in self._resting:
            del self._resting[block]
            self._refs[block] = 1
        else:
            super().acquire(block)

    def _free(self, block: int) -> None:
        if self._planned > self._landed:
            self._resting[block] = self._planned
        else:
            super()._free(block)

    def check(self, holders: Iterable[int]) -> None:
        super().check(holders)
        assert not set(self._resting) & set(self.free_list), "a block rests and is free"
        assert self._planned > self._landed or not self._resting, "blocks rest though nothing is under way"


def device_pool(shape: PoolShape, content: BlockContent) -> BlockPool:
    """The pool that the device's way of running steps asks for."""
    return (LimboPool if shape.late_writes else BlockPool)(shape.num_blocks, content)
