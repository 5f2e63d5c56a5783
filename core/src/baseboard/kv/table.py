"""The blocks of one sequence, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from baseboard.kv.group import group_key
from baseboard.kv.pool import NULL_BLOCK
from baseboard.kv.prefix import KeyChain, PrefixCache


@dataclass(slots=True)
class BlockTable:
    """One layer group's: entry ``i`` holds tokens ``i * B .. (i + 1) * B - 1``. Owner: the KV manager."""

    blocks: list[int] = field(default_factory=list[int])
    slid: int = 0  #: leading entries that are null: out of the window's sight
    told: int = 0  #: of those, the ones that a plan has said so of
    host_blocks: list[int] = field(default_factory=list[int])  #: while swapped out, instead of ``blocks[slid:]``

    @property
    def held(self) -> Sequence[int]:
        return self.blocks[self.slid :] if self.slid else self.blocks

    def slide(self, first: int) -> list[int]:
        """Entries before ``first`` become null; returns the blocks that stood there."""
        gone = self.blocks[self.slid : first]
        self.blocks[self.slid : first] = [NULL_BLOCK] * len(gone)
        self.slid += len(gone)
        return gone

    def check(self) -> None:
        """Raise ``AssertionError`` unless exactly the entries that slid out are null."""
        assert not any(self.blocks[: self.slid]), f"a block out of sight is kept: {self}"
        assert NULL_BLOCK not in self.held, f"a table has a hole: {self}"

    def clear(self) -> None:
        self.blocks.clear()
        self.host_blocks.clear()
        self.slid = self.told = 0


@dataclass(slots=True)
class CrossTable(BlockTable):
    """Keys and values of an encoder's output: ``num_blocks`` blocks, all taken at once, written once, never more."""

    num_blocks: int = 0
    written: bool = False  #: whether a plan has had them written

    def share(self) -> CrossTable:
        """The same blocks for a fork: nobody writes to them any more."""
        return CrossTable(list(self.blocks), num_blocks=self.num_blocks, written=self.written)

    def clear(self) -> None:
        BlockTable.clear(self)
        self.written = False


@dataclass(slots=True)
class SequenceBlocks:
    """All that is held for one sequence: a table for each layer group, and one for what its source was encoded to.

    Owner: the KV manager.
    """

    keys: KeyChain
    tables: tuple[BlockTable, ...]
    cross: CrossTable | None = None  #: where decoder layers read an encoder's output; None: they read none
    num_published: int = 0  #: leading blocks that the prefix index has been told of
    outdated: bool = False  #: older than the last reset of the index, which hears of it no more

    @property
    def holding(self) -> tuple[BlockTable, ...]:
        """All tables, those of the layer groups first."""
        return self.tables if self.cross is None else (*self.tables, self.cross)

    def publish(self, index: PrefixCache, tokens: Sequence[int], num_blocks: int) -> None:
        """Tell the index of the blocks up to ``num_blocks`` that it was not told of; ``tokens`` fill them."""
        self.keys.extend(tokens, num_blocks)
        keys = self.keys.keys
        for group, table in enumerate(self.tables):
            for at in range(max(self.num_published, table.slid), num_blocks):
                index.publish(group_key(keys[at], group), table.blocks[at])
        index.describe(keys, tokens)
        self.num_published = num_blocks

    def cached(self, index: PrefixCache, group: int) -> list[int]:
        """Leading blocks of a group's table, swapped out, that the index still has."""
        keys = self.keys.keys[self.tables[group].slid : self.num_published]
        return index.find([group_key(key, group) for key in keys])

    def clear(self) -> None:
        for table in self.holding:
            table.clear()
        self.num_published = 0
        self.outdated = False
