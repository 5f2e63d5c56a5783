"""Block tables: room, sharing, copy-on-write, swapping."""

from __future__ import annotations

import sys

import pytest

from baseboard.contract.plan import BlockPair, TableUpdate
from baseboard.kv.group import PoolShape, PrefixHit
from baseboard.kv.manager import Extension, KVCacheManager
from baseboard.kv.prefix import NoPrefixIndex, PrefixIndex

TOKENS = list(range(64))


def make(num_blocks: int = 8, host: int = 4) -> KVCacheManager:
    return KVCacheManager(PoolShape(num_blocks, 4), host, PrefixIndex())


def computed(kv: KVCacheManager, owner: str, num_tokens: int, tokens: list[int] = TOKENS) -> None:
    """A sequence with this many tokens computed and published."""
    kv.open(owner)
    assert kv.extend(owner, 0, num_tokens) is not None
    kv.settle(owner, tokens, num_tokens)


@pytest.mark.parametrize(("num_tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_are_counted_up(num_tokens: int, blocks: int) -> None:
    assert make().blocks_for(num_tokens) == blocks


def test_room_is_made_block_by_block() -> None:
    kv = make()
    kv.open("x")
    assert kv.extend("x", 0, 3) == Extension((TableUpdate("x", 0, (1,)),), (), 4)
    assert kv.extend("x", 3, 1) == Extension((), (), 4)
    assert kv.extend("x", 4, 5) == Extension((TableUpdate("x", 1, (2, 3)),), (), 12)
    assert list(kv.held("x")) == [1, 2, 3]
    assert kv.pool.num_free == 5


def test_where_there_is_no_room_nothing_changes() -> None:
    kv = make(2)
    kv.open("x")
    assert kv.extend("x", 0, 12) is None
    assert (list(kv.held("x")), kv.pool.num_free) == ([], 2)
    assert kv.extend("x", 0, 8) is not None
    assert kv.extend("x", 8, 1) is None
    kv.check()


@pytest.mark.parametrize(("num_tokens", "hit"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 8)])
def test_a_hit_is_whole_published_blocks_short_of_the_last_token(num_tokens: int, hit: int) -> None:
    kv = make()
    computed(kv, "first", 11)
    kv.open("second")
    match = kv.match("second", TOKENS[:num_tokens])
    assert match == PrefixHit(((1, 2)[: hit // 4],), hit)
    assert kv.pool.refs(1) == 1, "nothing is held before it is admitted"


def test_a_hit_is_held_once_admitted_and_extended_behind() -> None:
    kv = make()
    computed(kv, "first", 11)
    kv.open("second")
    kv.admit("second", kv.match("second", TOKENS[:11]))
    assert [kv.pool.refs(block) for block in (1, 2, 3)] == [2, 2, 1]
    assert kv.extend("second", 8, 3) == Extension((TableUpdate("second", 2, (4,)),), (), 12)
    kv.close("first")
    assert [kv.pool.refs(block) for block in (1, 2, 3)] == [1, 1, 0]
    kv.check()


@pytest.mark.parametrize(
    ("held_by_others", "spoken_for", "fits"),
    [(0, 0, True), (0, 1, False), (1, 0, False)],
)
def test_a_hit_that_lies_free_counts_once(held_by_others: int, spoken_for: int, fits: bool) -> None:
    """20 tokens need 5 blocks; 2 are a hit and lie among the 5 free ones, so 3 others must be there."""
    kv = make(5)
    computed(kv, "first", 8)
    kv.close("first")
    kv.open("other")
    assert kv.extend("other", 0, 4 * held_by_others) is not None
    kv.open("second")
    hit = kv.match("second", TOKENS[:20])
    assert hit.num_tokens == 8
    assert kv.fits(hit, 20, spoken_for) is fits


def test_a_hit_that_others_hold_takes_nothing_from_the_free() -> None:
    kv = make(5)
    computed(kv, "first", 8)
    kv.open("second")
    assert kv.fits(kv.match("second", TOKENS[:20]), 20, 0)
    assert not kv.fits(kv.match("second", TOKENS[:20]), 21, 0)
    assert not kv.fits(kv.no_match(), 13, 0)


def test_a_prompt_that_does_not_fit_changes_nothing() -> None:
    """Scenario 58: X (3 blocks) is the oldest content, 3 blocks are plain, 7 are needed."""
    kv = make(6)
    computed(kv, "X", 12)
    kv.close("X")
    free = kv.pool.free_list
    kv.open("R0")
    assert not kv.fits(kv.match("R0", TOKENS[:28]), 28, 0)
    assert kv.pool.free_list == free
    assert kv.fits(kv.match("R0", TOKENS[:24]), 24, 0)


def test_full_blocks_are_published_once_and_the_next_time_is_told() -> None:
    kv = make()
    kv.open("x")
    kv.extend("x", 0, 12)
    assert kv.settle("x", TOKENS, 3) == 4
    assert kv.index.num_entries == 0
    assert kv.settle("x", TOKENS, 4) == 8
    assert kv.settle("x", TOKENS, 7) == 8
    assert kv.index.num_entries == 1
    assert kv.settle("x", TOKENS, 12) == 16
    assert kv.index.num_entries == 3


def test_an_index_that_is_off_is_asked_once() -> None:
    kv = KVCacheManager(PoolShape(8, 4), 0, NoPrefixIndex())
    kv.open("x")
    kv.extend("x", 0, 12)
    assert kv.settle("x", TOKENS, 3) == 4
    assert kv.settle("x", TOKENS, 4) == sys.maxsize


def test_a_shared_half_block_is_copied_and_the_last_holder_writes_in_place() -> None:
    kv = make()
    computed(kv, "parent", 6)
    kv.fork("parent", "child", 6)
    assert [kv.pool.refs(block) for block in (1, 2)] == [2, 2]
    assert kv.extend("child", 6, 1) == Extension((TableUpdate("child", 1, (3,)),), (BlockPair(2, 3),), 8)
    assert [kv.pool.refs(block) for block in (1, 2, 3)] == [2, 1, 1]
    assert kv.extend("parent", 6, 1) == Extension((), (), 8)
    assert (list(kv.held("parent")), list(kv.held("child"))) == ([1, 2], [1, 3])
    kv.check()


def test_a_copy_and_new_blocks_come_together_or_not_at_all() -> None:
    kv = make(4)
    computed(kv, "parent", 6)
    kv.fork("parent", "child", 6)
    assert kv.extend("child", 6, 7) is None, "a copy and two new blocks are three, two are free"
    assert (list(kv.held("child")), kv.pool.num_free) == ([1, 2], 2)
    assert kv.extend("child", 6, 6) == Extension((TableUpdate("child", 1, (3, 4)),), (BlockPair(2, 3),), 12)


def test_a_fork_at_a_block_edge_copies_nothing() -> None:
    kv = make()
    computed(kv, "parent", 8)
    kv.fork("parent", "child", 8)
    assert kv.extend("child", 8, 1) == Extension((TableUpdate("child", 2, (3,)),), (), 12)
    assert kv.extend("parent", 8, 1) == Extension((TableUpdate("parent", 2, (4,)),), (), 12)


def test_a_fork_shares_only_the_blocks_of_the_tokens_it_is_told() -> None:
    kv = make()
    computed(kv, "parent", 10)
    kv.fork("parent", "child", 5)
    assert list(kv.held("child")) == [1, 2]


def test_an_inherited_block_that_is_published_is_forgotten_before_it_is_written() -> None:
    """Forked at 6 tokens; the parent's writes of tokens 6 and 7 were under way then, and it published them."""
    kv = make()
    kv.open("parent")
    kv.extend("parent", 0, 8)
    kv.fork("parent", "child", 6)
    kv.settle("parent", TOKENS, 8)
    kv.close("parent")
    assert kv.index.num_entries == 2
    assert kv.extend("child", 6, 1) == Extension((), (), 8)
    assert kv.index.num_entries == 1
    kv.settle("child", [*TOKENS[:7], 99], 8)
    assert kv.index.num_entries == 2
    kv.open("reader")
    assert kv.match("reader", TOKENS[:9]).num_tokens == 4
    kv.check()


def test_swapping_out_and_in_moves_every_block_once() -> None:
    kv = KVCacheManager(PoolShape(4, 4), 4, NoPrefixIndex())
    kv.open("x")
    kv.extend("x", 0, 10)
    out = kv.swap_out("x")
    assert out == (BlockPair(1, 0), BlockPair(2, 1), BlockPair(3, 2))
    assert (list(kv.held("x")), kv.pool.num_free, kv.host.num_free) == ([], 4, 1)
    kv.check()
    into = kv.swap_in("x", 11)
    assert into is not None
    assert [pair.source for pair in into] == [0, 1, 2]
    assert [pair.destination for pair in into] == list(kv.held("x"))
    assert (kv.pool.num_free, kv.host.num_free) == (1, 4)
    kv.check()


def test_swapping_out_needs_room_for_all() -> None:
    kv = make(host=2)
    computed(kv, "x", 12)
    assert kv.swap_out("x") is None
    assert (len(kv.held("x")), kv.host.num_free) == (3, 2)


@pytest.mark.parametrize(("num_tokens", "fits"), [(12, True), (13, False)])
def test_swapping_in_needs_room_for_the_next_token_too(num_tokens: int, fits: bool) -> None:
    kv = KVCacheManager(PoolShape(4, 4), 4, NoPrefixIndex())
    kv.open("x")
    kv.extend("x", 0, 12)
    kv.swap_out("x")
    kv.open("other")
    kv.extend("other", 0, 4)
    assert (kv.swap_in("x", num_tokens) is not None) is fits
    assert kv.host.num_free == (4 if fits else 1)
    kv.check()


def test_swapping_in_takes_full_blocks_that_are_still_cached() -> None:
    kv = make()
    computed(kv, "x", 10)
    kv.swap_out("x")
    into = kv.swap_in("x", 11)
    assert into is not None
    assert [pair.source for pair in into] == [2], "blocks 1 and 2 were still in the index"
    assert list(kv.held("x"))[:2] == [1, 2]
    kv.check()


def test_closing_gives_everything_back_on_both_sides() -> None:
    kv = make()
    computed(kv, "x", 10)
    kv.swap_out("x")
    computed(kv, "y", 5, list(range(50, 64)))
    kv.close("x")
    kv.close("y")
    assert (kv.pool.num_free, kv.host.num_free) == (8, 4)
    with pytest.raises(KeyError):
        kv.held("x")


def test_what_is_released_can_start_over() -> None:
    kv = make()
    computed(kv, "x", 10)
    kv.release("x")
    assert kv.match("x", TOKENS[:10]).num_tokens == 8
    assert kv.extend("x", 0, 32) is not None, "it takes every block, those with its old content too"
    assert kv.index.num_entries == 0
    assert kv.settle("x", TOKENS, 10) == 12
    assert kv.index.num_entries == 2, "computed again, published again"
    kv.check()


def test_a_reset_returns_what_was_kept_and_lets_holders_keep_theirs() -> None:
    kv = make()
    computed(kv, "gone", 8)
    computed(kv, "stays", 9, list(range(20, 64)))
    kv.close("gone")
    assert kv.reset_index() == (2, 1)
    assert kv.index.num_entries == 0
    assert len(kv.held("stays")) == 3
    assert kv.settle("stays", list(range(20, 64)), 12) == sys.maxsize
    assert kv.index.num_entries == 0
    kv.fork("stays", "child", 9)
    assert kv.settle("child", list(range(20, 64)), 12) == sys.maxsize
    kv.release("stays")
    kv.extend("stays", 0, 9)
    assert kv.settle("stays", list(range(20, 64)), 9) == 12
    assert kv.index.num_entries == 2
    kv.check()


def test_the_check_finds_a_block_listed_twice_in_one_table() -> None:
    kv = make()
    computed(kv, "x", 8)
    kv._sequences["x"].tables[0].blocks[1] = 1
    with pytest.raises(AssertionError):
        kv.check()
    kv.pool.release([2], "x")
    kv.pool.acquire(1)
    with pytest.raises(AssertionError, match="'x' lists a block twice"):
        kv.check()
