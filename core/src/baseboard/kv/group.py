"""A group of layers: which part of a sequence they look at, and so which blocks they need."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from baseboard.kv.pool import NULL_BLOCK
from baseboard.kv.prefix import PrefixCache


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers with one block table of their own. Blocks of all groups are of one size and come from one pool.

    ``window`` keys, its own included, are what a token sees in these layers; None: everything before it. A block that
    no later token can see is given back, and its entry in the table becomes the null block::

        B = 4, window 10, next position 19:  keys 10 .. 19 are seen       table [0][0][5][2][9]
    """

    window: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"a window of {self.window} tokens sees nothing: it must be at least 1")

    def first_block(self, computed: int, block_size: int) -> int:
        """The first block that the token at position ``computed``, or a later one, can see."""
        return 0 if self.window is None else max(computed - self.window + 1, 0) // block_size

    def slides_at(self, first_block: int, block_size: int) -> int:
        """Number of computed tokens at which block ``first_block`` is out of sight."""
        return sys.maxsize if self.window is None else (first_block + 1) * block_size + self.window - 1

    def most_blocks(self, num_tokens: int, block_size: int, underway: int) -> int:
        """Blocks that a sequence holds at its worst moment, with ``underway`` tokens given out and not settled."""
        needed = -(-num_tokens // block_size)
        if self.window is None:
            return needed
        # The window, and what is under way behind it, may begin and end anywhere in a block.
        return min(needed, -(-(self.window - 1 + underway) // block_size) + 1)


WHOLE: Final = LayerGroup()


@dataclass(frozen=True, slots=True)
class PoolShape:
    """``ValueError`` for a pool that holds nothing."""

    num_blocks: int  #: usable ones: the null block comes on top
    block_size: int  #: tokens that a rank holds of each block
    num_ranks: int = 1  #: ranks over which each sequence is spread (context parallelism); all have the same blocks
    late_writes: bool = False  #: a step that was planned earlier may write after one that was planned later

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "num_ranks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")

    @property
    def block_tokens(self) -> int:
        """Tokens that one block id stands for, on all ranks together."""
        return self.block_size * self.num_ranks


def windowed_chunk(groups: Sequence[LayerGroup], pool: PoolShape, budget: int, num_steps: int) -> int:
    """A chunk, of at most ``budget`` tokens, with which windowed groups leave half the pool to others.

    With ``num_steps`` steps under way as many chunks wait to be settled. At least one token.
    """

    def taken(chunk: int) -> int:
        windowed = (group for group in groups if group.window is not None)
        return sum(group.most_blocks(sys.maxsize, pool.block_tokens, chunk * num_steps) for group in windowed)

    chunk = budget
    while chunk > 1 and taken(chunk) > pool.num_blocks // 2:
        chunk //= 2
    return chunk


def longest_sequence(groups: Sequence[LayerGroup], pool: PoolShape, underway: int) -> int:
    """Tokens of the longest sequence for which the whole pool suffices."""

    def suffices(blocks: int) -> bool:
        tokens, size = blocks * pool.block_tokens, pool.block_tokens
        return sum(group.most_blocks(tokens, size, underway) for group in groups) <= pool.num_blocks

    if all(group.window is not None for group in groups) and suffices(sys.maxsize):
        return sys.maxsize
    low, high = 0, pool.num_blocks
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if suffices(middle) else (low, middle - 1)
    return low * pool.block_tokens


def group_key(key: bytes, group: int) -> bytes:
    """The index key of a block in one of the groups; each has content of its own for the same tokens."""
    return key + group.to_bytes(1, "little") if group else key


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """A sequence's beginning that is in the cache already; held only once admitted.

    ``tables[g]`` is how group ``g``'s table begins: null where its layers need not look any more.
    """

    tables: tuple[tuple[int, ...], ...]
    num_tokens: int

    def blocks(self) -> list[int]:
        return [block for table in self.tables for block in table if block != NULL_BLOCK]


def find_hit(index: PrefixCache, groups: Sequence[LayerGroup], keys: Sequence[bytes], block_size: int) -> PrefixHit:
    """The longest beginning of which every group has the blocks that the token after it will see."""
    if len(groups) == 1 and groups[0].window is None:
        found = index.find(keys)
        return PrefixHit((tuple(found),), len(found) * block_size)
    known = [index.find_each([group_key(key, g) for key in keys]) for g in range(len(groups))]
    unbroken = [_unbroken(blocks) for blocks in known]
    for length in range(len(keys), 0, -1):
        firsts = [group.first_block(length * block_size, block_size) for group in groups]
        if all(run[length - 1] >= length - first for first, run in zip(firsts, unbroken, strict=True)):
            parts = zip(firsts, known, strict=True)
            tables = tuple((NULL_BLOCK,) * first + tuple(blocks[first:length]) for first, blocks in parts)
            return PrefixHit(tables, length * block_size)
    return nothing_found(groups)


def nothing_found(groups: Sequence[LayerGroup]) -> PrefixHit:
    return PrefixHit(((),) * len(groups), 0)


def _unbroken(blocks: Sequence[int]) -> list[int]:
    """For each entry, how many known ones in a row end there."""
    runs: list[int] = []
    for block in blocks:
        runs.append(0 if block == NULL_BLOCK else (runs[-1] if runs else 0) + 1)
    return runs
