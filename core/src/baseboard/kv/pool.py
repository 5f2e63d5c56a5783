"""Physical blocks: reference counts, and free blocks in the order in which they are taken."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from baseboard.contract.errors import BaseboardError

#: Target of all padding; belongs to nobody.
NULL_BLOCK: Final = 0


class BlockError(BaseboardError):
    """A block was released twice or by somebody who does not hold it: a bug in the caller."""


class BlockContent(Protocol):
    """Who knows whether a block's content could be of use to a later request."""

    def holds(self, block: int) -> bool: ...
    def forget(self, block: int) -> None: ...


class BlockPool:
    """Blocks ``first .. first + num_blocks - 1``; every operation costs O(1) per block.

    A block is in exactly one of three places::

        refs > 0                                     held by that many table entries
        refs = 0, content of no use     -> _plain    taken first, in the order they were freed
        refs = 0, content in the index  -> _cached   taken when no plain one is left, least recently used first
    """

    def __init__(self, num_blocks: int, content: BlockContent, first: int = 1) -> None:
        self.num_blocks: Final = num_blocks
        self._content: Final = content
        self._first: Final = first
        self._refs: Final[list[int]] = [0] * (first + num_blocks)
        self._plain: Final[deque[int]] = deque(range(first, first + num_blocks))
        self._cached: Final[OrderedDict[int, None]] = OrderedDict()
        self.num_evictions = 0

    @property
    def num_free(self) -> int:
        """Blocks that can be had without taking one from a holder."""
        return len(self._plain) + len(self._cached)

    @property
    def writes_come_late(self) -> bool:
        """Whether a step that was planned earlier may write after one that was planned later."""
        return False

    @property
    def num_coming(self) -> int:
        """Blocks that nobody holds and that are free once steps under way have landed: none on a device in order."""
        return 0

    @property
    def free_list(self) -> list[int]:
        """Free blocks, next to be taken first."""
        return [*self._plain, *self._cached]

    def refs(self, block: int) -> int:
        return self._refs[block]

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks; the caller has made sure that ``num_free`` suffices."""
        taken: list[int] = []
        for _ in range(count):
            if self._plain:
                block = self._plain.popleft()
            else:
                block, _ = self._cached.popitem(last=False)
                self._content.forget(block)
                self.num_evictions += 1
            self._refs[block] = 1
            taken.append(block)
        return taken

    def acquire(self, block: int) -> None:
        """Take one more reference to a block whose content is wanted."""
        if self._refs[block] == 0:
            del self._cached[block]
        self._refs[block] += 1

    def release(self, blocks: Sequence[int], owner: str) -> None:
        """Give back one reference to each block, last one first, so that tails are evicted before heads.

        The null block is passed over. Raises ``BlockError``, before anything is changed, for a block that is
        listed twice or free already.
        """
        held = [block for block in blocks if block != NULL_BLOCK or self._first == NULL_BLOCK]
        self._check_release(held, owner)
        for block in reversed(held):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free(block)

    def _free(self, block: int) -> None:
        """Nobody holds it any more."""
        if self._content.holds(block):
            self._cached[block] = None
        else:
            self._plain.append(block)

    def planned(self, step: int) -> None:
        """A step has been planned; on a device in order it makes no difference."""

    def landed(self, step: int) -> None:
        """The step, and all before it, can write nothing any more."""

    def forget_contents(self) -> tuple[int, ...]:
        """No free block is worth keeping any more; returns those that were kept until now."""
        dropped = tuple(self._cached)
        self._plain.extend(dropped)
        self._cached.clear()
        return dropped

    def _check_release(self, blocks: Sequence[int], owner: str) -> None:
        if len(set(blocks)) != len(blocks):
            twice = sorted(block for block in set(blocks) if blocks.count(block) > 1)
            raise BlockError(f"{owner!r} releases block {twice[0]} twice in one call")
        for block in blocks:
            if not self._first <= block < self._first + self.num_blocks:
                raise BlockError(f"{owner!r} releases block {block}, which is not in this pool")
            if self._refs[block] == 0:
                raise BlockError(f"{owner!r} releases block {block}, which is free already")

    def check(self, holders: Iterable[int]) -> None:
        """Raise ``AssertionError`` unless free, referenced and ``holders`` (one entry a reference) agree."""
        expected = [0] * len(self._refs)
        for block in holders:
            expected[block] += 1
        assert expected == self._refs, f"reference counts {self._refs} but tables say {expected}"
        free = self.free_list
        assert len(set(free)) == len(free), f"a block is free twice: {sorted(free)}"
        assert all(self._refs[block] == 0 for block in free), "a held block is in the free list"
        held = sum(1 for refs in self._refs if refs)
        at_hand = self.num_blocks - self.num_coming
        assert len(free) + held == at_hand, f"{len(free)} free + {held} held != {at_hand}"
        assert all(self._content.holds(block) for block in self._cached), "a block is kept for nothing"
        assert not any(self._content.holds(block) for block in self._plain), "a useful block is taken first"
