"""The KV-cache manager: who holds which block, what may be shared, what must be copied first."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from baseboard.contract.plan import BlockPair, TableUpdate
from baseboard.kv.group import (
    WHOLE,
    LayerGroup,
    PoolShape,
    PrefixHit,
    find_hit,
    longest_sequence,
    nothing_found,
)
from baseboard.kv.host import host_pool
from baseboard.kv.limbo import device_pool
from baseboard.kv.pool import NULL_BLOCK
from baseboard.kv.prefix import ExtraKeys, KeyChain, PrefixCache
from baseboard.kv.table import BlockTable, CrossTable, SequenceBlocks


@dataclass(frozen=True, slots=True)
class Extension:
    """Room that was made: what changed in the tables; ``copies`` come before any write."""

    updates: tuple[TableUpdate, ...]
    copies: tuple[BlockPair, ...]
    capacity: int  #: tokens the tables hold now


class KVCacheManager:
    """Block tables over one device pool, one host pool and one prefix index. Never sees a request.

    Writes go into blocks with one reference only. Full blocks are published once computed and never written again,
    so the one block that can be shared *and* written is the half-filled last one of a forked sequence: it is copied
    first, and the last holder writes in place::

        fork at 6 tokens, B = 4       parent [7][9]     9 has 2 references, holds tokens 4 and 5
                                      child  [7][9]
        child writes token 6          child  [7][3]     copy 9 -> 3, then 9 has 1 reference
        parent writes token 6         parent [7][9]     in place

    Each of ``groups`` has a table of its own in every sequence. ``underway`` is the most tokens of one sequence that
    are given out and not settled yet; it says how many blocks a windowed group holds at its worst moment.
    """

    def __init__(
        self,
        shape: PoolShape,
        num_host_blocks: int,
        index: PrefixCache,
        groups: tuple[LayerGroup, ...] = (WHOLE,),
        underway: int = sys.maxsize,
    ) -> None:
        self.shape: Final = shape
        self.block_size: Final = shape.block_tokens  # what a block is to whoever counts tokens
        self.pool: Final = device_pool(shape, index)
        self.host: Final = host_pool(num_host_blocks)
        self.index: Final = index
        self.groups: Final = groups
        self._underway: Final = underway
        self._windowed: Final = tuple(at for at, group in enumerate(groups) if group.window is not None)
        self._sequences: Final[dict[str, SequenceBlocks]] = {}

    @property
    def windowed(self) -> bool:
        """Whether there are groups that let go of what is out of sight."""
        return bool(self._windowed)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence for which the whole pool suffices."""
        return longest_sequence(self.groups, self.shape, self._underway)

    # --- a sequence's life ------------------------------------------------------------------------------------

    def open(self, owner: str, namespace: bytes = b"", extra: ExtraKeys | None = None, num_source: int = 0) -> None:
        """Know a sequence, which attends to ``num_source`` encoded tokens beside its own; it holds nothing yet."""
        keys = KeyChain(namespace, self.block_size, extra)
        cross = CrossTable(num_blocks=self.blocks_for(num_source)) if num_source else None
        self._sequences[owner] = SequenceBlocks(keys, tuple([BlockTable() for _ in self.groups]), cross)

    def covers(self, owner: str, num_tokens: int) -> bool:
        """Whether all blocks are held that a token at position ``num_tokens`` sees."""
        tables = self._sequences[owner].tables
        return all(tables[g].slid <= self.groups[g].first_block(num_tokens, self.block_size) for g in self._windowed)

    def fork(self, parent: str, child: str, computed: int) -> None:
        """``child`` shares the blocks that hold the first ``computed`` tokens of ``parent``, which covers them."""
        source = self._sequences[parent]
        end = self.blocks_for(computed)
        shared = [BlockTable(table.blocks[:end], table.slid, table.slid) for table in source.tables]
        cross = None if source.cross is None else source.cross.share()
        self._sequences[child] = SequenceBlocks(
            source.keys.copy(), tuple(shared), cross, source.num_published, source.outdated
        )
        for table in self._sequences[child].holding:
            for block in table.held:
                self.pool.acquire(block)

    def release(self, owner: str) -> None:
        """Give all blocks back, device and host; the sequence stays known and may start over."""
        sequence = self._sequences[owner]
        for table in sequence.holding:
            self.pool.release(table.held, owner)
            self.host.release(table.host_blocks, owner)
        sequence.clear()

    def close(self, owner: str) -> None:
        """Give all blocks back and forget the sequence."""
        self.release(owner)
        del self._sequences[owner]

    def rename(self, owner: str, to: str) -> None:
        """The same blocks under another name: their owner has ended, somebody else still reads them."""
        self._sequences[to] = self._sequences.pop(owner)

    # --- room -------------------------------------------------------------------------------------------------

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def held(self, owner: str) -> list[int]:
        """All device blocks of a sequence."""
        return [block for table in self._sequences[owner].holding for block in table.held]

    def tables(self, owner: str) -> tuple[tuple[int, ...], ...]:
        """Each group's table; entries out of the window's sight are null."""
        return tuple([tuple(table.blocks) for table in self._sequences[owner].tables])

    def cross(self, owner: str) -> tuple[int, ...]:
        """The table through which a sequence reads what its source was encoded to; nothing where it has none."""
        cross = self._sequences[owner].cross
        return () if cross is None else tuple(cross.blocks)

    def begin_cross(self, owner: str) -> bool:
        """Whether the plan that asks has to have the cross blocks written: the first since they were taken has."""
        cross = self._sequences[owner].cross
        if cross is None or cross.written:
            return False
        cross.written = True
        return True

    def apart(self, owner: str) -> int:
        """Blocks that a sequence needs apart from those for its tokens, and does not hold yet."""
        cross = self._sequences[owner].cross
        return 0 if cross is None else cross.num_blocks - len(cross.blocks)

    def longest_beside(self, num_source: int) -> int:
        """Tokens of the longest sequence that fits beside what its own source is encoded to; 0: none."""
        left = self.pool.num_blocks - self.blocks_for(num_source)
        return longest_sequence(self.groups, replace(self.shape, num_blocks=left), self._underway) if left > 0 else 0

    def room(self, owner: str) -> int:
        """Tokens that the tables hold."""
        return len(self._sequences[owner].tables[0].blocks) * self.block_size

    def lacking(self, owner: str, num_tokens: int) -> int:
        """Blocks that a sequence of ``num_tokens`` tokens may still come to need beside those it holds."""
        tables = self._sequences[owner].tables
        return sum(max(self._most(g, num_tokens, table) - len(table.held), 0) for g, table in enumerate(tables))

    def match(self, owner: str, tokens: Sequence[int]) -> PrefixHit:
        """The longest cached beginning of ``tokens``, short of the last token: one is always computed."""
        limit = (len(tokens) - 1) // self.block_size
        keys = self._sequences[owner].keys
        keys.extend(tokens, self.index.full_blocks(len(tokens), self.block_size))
        return find_hit(self.index, self.groups, keys.keys[:limit], self.block_size)

    def no_match(self) -> PrefixHit:
        return nothing_found(self.groups)

    def fits(self, hit: PrefixHit, num_tokens: int, spoken_for: int) -> bool:
        """Whether ``num_tokens`` tokens have room beside ``spoken_for`` blocks that others will need."""
        cached = hit.blocks()
        needed = sum(group.most_blocks(num_tokens, self.block_size, self._underway) for group in self.groups)
        fresh = max(needed - len(cached), 0)
        return fresh <= self.pool.num_free - self._idle(cached) - spoken_for

    def admit(self, owner: str, hit: PrefixHit) -> None:
        """Hold the hit's blocks as the beginning of empty tables."""
        sequence = self._sequences[owner]
        for table, blocks in zip(sequence.tables, hit.tables, strict=True):
            table.blocks.extend(blocks)
            table.slid = table.told = blocks.count(NULL_BLOCK)
            for block in table.held:
                self.pool.acquire(block)
        sequence.num_published = hit.num_tokens // self.block_size
        if sequence.cross is not None:
            sequence.cross.blocks.extend(self.pool.allocate(sequence.cross.num_blocks))

    def extend(self, owner: str, computed: int, count: int) -> Extension | None:
        """Make room for tokens ``computed .. computed + count - 1``; None, and no change, where there is none."""
        tables, pool = self._sequences[owner].tables, self.pool
        first, end = computed // self.block_size, self.blocks_for(computed + count)
        needed = 0
        for table in tables:
            have = len(table.blocks)
            if end > have:
                needed += end - have
            if first < have and pool.refs(table.blocks[first]) > 1:
                needed += 1
        if needed > pool.num_free:
            return None
        updates: list[TableUpdate] = []
        copies: list[BlockPair] = []
        for group, table in enumerate(tables):
            if table.told < table.slid:
                updates.append(TableUpdate(owner, table.told, (NULL_BLOCK,) * (table.slid - table.told), group))
                table.told = table.slid
            begin = len(table.blocks)
            if first < begin and not self._may_write(table.blocks[first]):
                begin = first
                copies.append(self._unshare(owner, table, first))
            if end > len(table.blocks):
                table.blocks += pool.allocate(end - len(table.blocks))
            if begin < len(table.blocks):
                updates.append(TableUpdate(owner, begin, tuple(table.blocks[begin:]), group))
        return Extension(tuple(updates), tuple(copies), len(tables[0].blocks) * self.block_size)

    def settle(self, owner: str, tokens: Sequence[int], computed: int) -> int:
        """The first ``computed`` tokens are computed for good: publish full blocks, let go what is out of sight.

        Returns at how many computed tokens to call again.
        """
        sequence = self._sequences[owner]
        again = self._publish(sequence, tokens, computed)
        for g in self._windowed:
            again = min(again, self._slide(owner, sequence.tables[g], self.groups[g], computed))
        return again

    # --- swapping ---------------------------------------------------------------------------------------------

    def swap_out(self, owner: str) -> tuple[BlockPair, ...] | None:
        """Move a sequence to the host pool: (device, host) pairs; None, and no change, where there is no room."""
        tables = self._sequences[owner].holding
        if sum(len(table.held) for table in tables) > self.host.num_free:
            return None
        pairs: list[BlockPair] = []
        for table in tables:
            table.host_blocks.extend(self.host.allocate(len(table.held)))
            pairs.extend(map(BlockPair, table.held, table.host_blocks))
            self.pool.release(table.held, owner)
            del table.blocks[table.slid :]
        return tuple(pairs)

    def swap_in(self, owner: str, num_tokens: int) -> tuple[BlockPair, ...] | None:
        """Bring a sequence back with room for ``num_tokens`` tokens: (host, device) pairs of what must be moved.

        Full blocks that are still in the prefix index are taken from there. None, and no change, where there is
        no room.
        """
        sequence = self._sequences[owner]
        hits = [sequence.cached(self.index, group) for group in range(len(self.groups))]
        cached = [block for blocks in hits for block in blocks]
        wanted = sum(max(self.blocks_for(num_tokens) - table.slid, len(table.host_blocks)) for table in sequence.tables)
        if sequence.cross is not None:
            wanted += sequence.cross.num_blocks
        if wanted - len(cached) > self.pool.num_free - self._idle(cached):
            return None
        for block in cached:
            self.pool.acquire(block)
        pairs: list[BlockPair] = []
        for table, blocks in zip(sequence.holding, [*hits, []], strict=False):  # the last for a table beside the groups
            moved = table.host_blocks[len(blocks) :]
            fresh = self.pool.allocate(len(moved))
            table.blocks.extend(blocks + fresh)
            pairs.extend(map(BlockPair, moved, fresh))
            self.host.release(table.host_blocks, owner)
            table.host_blocks.clear()
            table.told = table.slid
        sequence.num_published = min(
            table.slid + len(blocks) for table, blocks in zip(sequence.tables, hits, strict=True)
        )
        return tuple(pairs)

    # --- the whole --------------------------------------------------------------------------------------------

    def reset_index(self) -> tuple[int, ...]:
        """Forget every cached prefix; returns the blocks that were kept for their content and nobody holds.

        Blocks in use stay with their holders, which publish nothing any more until they start over.
        """
        for sequence in self._sequences.values():
            if any(table.blocks or table.host_blocks for table in sequence.tables):
                sequence.num_published = 0
                sequence.outdated = True
        self.index.clear()
        return self.pool.forget_contents()

    def check(self) -> None:
        """Raise ``AssertionError`` on any broken invariant."""
        tables = [table for sequence in self._sequences.values() for table in sequence.holding]
        self.pool.check(block for table in tables for block in table.held)
        self.host.check(block for table in tables for block in table.host_blocks)
        self.index.check()
        for owner, sequence in self._sequences.items():
            held = self.held(owner)
            assert len(set(held)) == len(held), f"{owner!r} lists a block twice: {self.tables(owner)}"
            for table in sequence.holding:
                table.check()

    # --- inside -----------------------------------------------------------------------------------------------

    def _idle(self, blocks: Iterable[int]) -> int:
        """How many of ``blocks`` count as free now and would not once held."""
        return sum(1 for block in blocks if self.pool.refs(block) == 0)

    def _most(self, group: int, num_tokens: int, table: BlockTable) -> int:
        most = self.groups[group].most_blocks(num_tokens, self.block_size, self._underway)
        return min(most, self.blocks_for(num_tokens) - table.slid)

    def _may_write(self, block: int) -> bool:
        """Whether a block has no other holder; it is no longer in the index then."""
        if self.pool.refs(block) > 1:
            return False
        if self.index.holds(block):
            # A holder that ran ahead filled and published it before it left: this one goes on with other tokens.
            self.index.forget(block)
        return True

    def _unshare(self, owner: str, table: BlockTable, at: int) -> BlockPair:
        old = table.blocks[at]
        (new,) = self.pool.allocate(1)
        table.blocks[at] = new
        self.pool.release([old], owner)
        return BlockPair(old, new)

    def _publish(self, sequence: SequenceBlocks, tokens: Sequence[int], computed: int) -> int:
        full = self.index.full_blocks(computed, self.block_size)
        if sequence.outdated:
            return sys.maxsize
        if full > sequence.num_published:
            sequence.publish(self.index, tokens, full)
        if full == 0 and computed >= self.block_size:
            return sys.maxsize  # this index never wants any
        return (full + 1) * self.block_size

    def _slide(self, owner: str, table: BlockTable, group: LayerGroup, computed: int) -> int:
        gone = table.slide(group.first_block(computed, self.block_size))
        if gone:
            self.pool.release(gone, owner)
        return group.slides_at(table.slid, self.block_size)
