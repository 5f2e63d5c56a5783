"""The KV-cache manager: who holds which block, what may be shared, what must be copied first."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from baseboard.contract.plan import BlockPair
from baseboard.kv.host import host_pool
from baseboard.kv.pool import BlockPool
from baseboard.kv.prefix import KeyChain, PrefixCache
from baseboard.kv.table import BlockTable


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Blocks of a sequence's beginning that are in the cache already; held only once admitted."""

    blocks: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Extension:
    """Room that was made: the table from entry ``first`` on is now ``blocks``; ``copy`` comes before any write."""

    first: int
    blocks: tuple[int, ...]
    copy: BlockPair | None
    capacity: int  #: tokens the table holds now


class KVCacheManager:
    """Block tables over one device pool, one host pool and one prefix index. Never sees a request.

    Writes go into blocks with one reference only. Full blocks are published once computed and never written again,
    so the one block that can be shared *and* written is the half-filled last one of a forked sequence: it is copied
    first, and the last holder writes in place::

        fork at 6 tokens, B = 4       parent [7][9]     9 has 2 references, holds tokens 4 and 5
                                      child  [7][9]
        child writes token 6          child  [7][3]     copy 9 -> 3, then 9 has 1 reference
        parent writes token 6         parent [7][9]     in place
    """

    def __init__(self, num_blocks: int, block_size: int, num_host_blocks: int, index: PrefixCache) -> None:
        self.block_size: Final = block_size
        self.pool: Final = BlockPool(num_blocks, index)
        self.host: Final = host_pool(num_host_blocks)
        self.index: Final = index
        self._tables: Final[dict[str, BlockTable]] = {}

    # --- a sequence's life ------------------------------------------------------------------------------------

    def open(self, owner: str, tokens: Sequence[int], namespace: bytes = b"") -> None:
        """Know a sequence; hashes the full blocks of ``tokens``, holds nothing yet."""
        keys = KeyChain(namespace, self.block_size)
        keys.extend(tokens, self.index.full_blocks(len(tokens), self.block_size))
        self._tables[owner] = BlockTable(keys)

    def fork(self, parent: str, child: str, computed: int) -> None:
        """``child`` shares the blocks that hold the first ``computed`` tokens of ``parent``."""
        source = self._tables[parent]
        shared = source.blocks[: self.blocks_for(computed)]
        for block in shared:
            self.pool.acquire(block)
        self._tables[child] = BlockTable(
            source.keys.copy(), shared, num_published=source.num_published, outdated=source.outdated
        )

    def release(self, owner: str) -> None:
        """Give all blocks back, device and host; the sequence stays known and may start over."""
        table = self._tables[owner]
        self.pool.release(table.blocks, owner)
        self.host.release(table.host_blocks, owner)
        table.blocks.clear()
        table.host_blocks.clear()
        table.num_published = 0
        table.outdated = False

    def close(self, owner: str) -> None:
        """Give all blocks back and forget the sequence."""
        self.release(owner)
        del self._tables[owner]

    def rename(self, owner: str, to: str) -> None:
        """The same blocks under another name: their owner has ended, somebody else still reads them."""
        self._tables[to] = self._tables.pop(owner)

    # --- room -------------------------------------------------------------------------------------------------

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def held(self, owner: str) -> Sequence[int]:
        return self._tables[owner].blocks

    def match(self, owner: str, tokens: Sequence[int]) -> PrefixHit:
        """The longest cached beginning of ``tokens``, short of the last token: one is always computed."""
        limit = (len(tokens) - 1) // self.block_size
        keys = self._tables[owner].keys
        keys.extend(tokens, self.index.full_blocks(len(tokens), self.block_size))
        blocks = self.index.find(keys.keys[:limit])
        return PrefixHit(tuple(blocks), len(blocks) * self.block_size)

    def fits(self, hit: PrefixHit, num_tokens: int, spoken_for: int) -> bool:
        """Whether ``num_tokens`` tokens have room beside ``spoken_for`` blocks that others will need."""
        fresh = self.blocks_for(num_tokens) - len(hit.blocks)
        return fresh <= self.pool.num_free - self._idle(hit.blocks) - spoken_for

    def admit(self, owner: str, hit: PrefixHit) -> None:
        """Hold the hit's blocks as the beginning of an empty table."""
        table = self._tables[owner]
        for block in hit.blocks:
            self.pool.acquire(block)
        table.blocks.extend(hit.blocks)
        table.num_published = len(hit.blocks)

    def extend(self, owner: str, computed: int, count: int) -> Extension | None:
        """Make room for tokens ``computed .. computed + count - 1``; None, and no change, where there is none."""
        table = self._tables[owner]
        blocks = table.blocks
        first = computed // self.block_size
        fresh = max(self.blocks_for(computed + count) - len(blocks), 0)
        begun = first < len(blocks)
        shared = begun and self.pool.refs(blocks[first]) > 1
        if fresh + shared > self.pool.num_free:
            return None
        begin = len(blocks)
        copy = None
        if shared:
            begin = first
            copy = self._unshare(owner, table, first)
        elif begun and self.index.holds(blocks[first]):
            # A holder that ran ahead filled and published it before it left: this one goes on with other tokens.
            self.index.forget(blocks[first])
        blocks.extend(self.pool.allocate(fresh))
        return Extension(begin, tuple(blocks[begin:]), copy, len(blocks) * self.block_size)

    def publish(self, owner: str, tokens: Sequence[int], computed: int) -> int:
        """Tell the index of full blocks among the first ``computed`` tokens; returns when to call again."""
        table = self._tables[owner]
        full = self.index.full_blocks(computed, self.block_size)
        if table.outdated:
            return sys.maxsize
        if full > table.num_published:
            table.keys.extend(tokens, full)
            for at in range(table.num_published, full):
                self.index.publish(table.keys.keys[at], table.blocks[at])
            table.num_published = full
        if full == 0 and computed >= self.block_size:
            return sys.maxsize  # this index never wants any
        return (full + 1) * self.block_size

    # --- swapping ---------------------------------------------------------------------------------------------

    def swap_out(self, owner: str) -> tuple[BlockPair, ...] | None:
        """Move a sequence to the host pool: (device, host) pairs; None, and no change, where there is no room."""
        table = self._tables[owner]
        if len(table.blocks) > self.host.num_free:
            return None
        table.host_blocks.extend(self.host.allocate(len(table.blocks)))
        pairs = tuple(map(BlockPair, table.blocks, table.host_blocks))
        self.pool.release(table.blocks, owner)
        table.blocks.clear()
        return pairs

    def swap_in(self, owner: str, num_tokens: int) -> tuple[BlockPair, ...] | None:
        """Bring a sequence back with room for ``num_tokens`` tokens: (host, device) pairs of what must be moved.

        Full blocks that are still in the prefix index are taken from there. None, and no change, where there is
        no room.
        """
        table = self._tables[owner]
        hits = self.index.find(table.keys.keys[: table.num_published])
        wanted = max(self.blocks_for(num_tokens), len(table.host_blocks))
        if wanted - len(hits) > self.pool.num_free - self._idle(hits):
            return None
        for block in hits:
            self.pool.acquire(block)
        moved = table.host_blocks[len(hits) :]
        fresh = self.pool.allocate(len(moved))
        table.blocks.extend(hits + fresh)
        self.host.release(table.host_blocks, owner)
        table.host_blocks.clear()
        table.num_published = len(hits)
        return tuple(map(BlockPair, moved, fresh))

    # --- the whole --------------------------------------------------------------------------------------------

    def reset_index(self) -> tuple[int, ...]:
        """Forget every cached prefix; returns the blocks that were kept for their content and nobody holds.

        Blocks in use stay with their holders, which publish nothing any more until they start over.
        """
        for table in self._tables.values():
            if table.blocks or table.host_blocks:
                table.num_published = 0
                table.outdated = True
        self.index.clear()
        return self.pool.forget_contents()

    def check(self) -> None:
        """Raise ``AssertionError`` on any broken invariant."""
        tables = self._tables.values()
        self.pool.check(block for table in tables for block in table.blocks)
        self.host.check(block for table in tables for block in table.host_blocks)
        self.index.check()
        for owner, table in self._tables.items():
            assert len(set(table.blocks)) == len(table.blocks), f"{owner!r} lists a block twice: {table.blocks}"

    def _idle(self, blocks: Sequence[int]) -> int:
        """How many of ``blocks`` count as free now and would not once held."""
        return sum(1 for block in blocks if self.pool.refs(block) == 0)

    def _unshare(self, owner: str, table: BlockTable, at: int) -> BlockPair:
        old = table.blocks[at]
        (new,) = self.pool.allocate(1)
        table.blocks[at] = new
        self.pool.release([old], owner)
        return BlockPair(old, new)
