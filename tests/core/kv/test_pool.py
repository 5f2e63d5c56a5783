"""Physical blocks: who holds them, and in which order free ones are taken."""

from __future__ import annotations

from random import Random

import pytest

from baseboard.kv.host import host_pool
from baseboard.kv.pool import BlockError, BlockPool
from baseboard.kv.prefix import NoPrefixIndex, PrefixIndex


def make_pool(num_blocks: int = 4) -> tuple[BlockPool, PrefixIndex]:
    index = PrefixIndex()
    return BlockPool(num_blocks, index), index


def test_blocks_are_numbered_from_one_because_of_the_null_block() -> None:
    pool, _ = make_pool(3)
    assert pool.free_list == [1, 2, 3]
    assert pool.allocate(2) == [1, 2]
    assert (pool.num_free, pool.refs(1), pool.refs(3)) == (1, 1, 0)


def test_host_blocks_are_numbered_from_zero() -> None:
    pool = host_pool(3)
    assert pool.allocate(3) == [0, 1, 2]
    pool.release([0, 2], "x")
    assert pool.free_list == [2, 0]
    pool.check([1])


def test_plain_blocks_go_first_then_the_least_recently_used_content() -> None:
    pool, index = make_pool(6)
    a, b, c, d = pool.allocate(4)
    for block in (a, b, c):
        index.publish(bytes([block]), block)
    pool.release([a, b], "old")
    pool.release([c, d], "new")
    # 5 and 6 were never used, then d was given back without content; of the rest b, a (tail first), c.
    assert pool.free_list == [5, 6, d, b, a, c]
    assert pool.allocate(5) == [5, 6, d, b, a]
    assert pool.num_evictions == 2
    assert (index.holds(a), index.holds(b), index.holds(c)) == (False, False, True)


def test_using_content_again_makes_it_recent() -> None:
    pool, index = make_pool(3)
    blocks = pool.allocate(3)
    for block in blocks:
        index.publish(bytes([block]), block)
        pool.release([block], "x")
    pool.acquire(1)
    assert pool.free_list == [2, 3]
    pool.acquire(1)
    pool.release([1], "x")
    assert pool.free_list == [2, 3], "one reference is left"
    pool.release([1], "x")
    assert pool.free_list == [2, 3, 1]


def test_releasing_twice_names_block_and_owner_and_changes_nothing() -> None:
    """Scenario 48."""
    pool, _ = make_pool()
    a, b = pool.allocate(2)
    with pytest.raises(BlockError, match=f"^'R0' releases block {b} twice in one call$"):
        pool.release([a, b, b], "R0")
    assert (pool.num_free, pool.refs(a), pool.refs(b)) == (2, 1, 1)
    pool.release([a], "R0")
    assert pool.num_free == 3
    with pytest.raises(BlockError, match=f"^'R1' releases block {a}, which is free already$"):
        pool.release([b, a], "R1")
    assert (pool.num_free, pool.refs(b)) == (3, 1)
    with pytest.raises(BlockError, match=r"^'R1' releases block 5, which is not in this pool$"):
        pool.release([5], "R1")


def test_the_null_block_is_passed_over() -> None:
    """Scenario 48: tables may hold it, nobody owns it."""
    pool, _ = make_pool()
    (a,) = pool.allocate(1)
    pool.release([0, a, 0], "R0")
    assert pool.num_free == 4
    pool.check([])


def test_a_block_held_twice_comes_back_with_the_second_release() -> None:
    """Scenario 48: a pin beside a table entry."""
    pool, _ = make_pool()
    (a,) = pool.allocate(1)
    pool.acquire(a)
    pool.release([a], "table")
    assert pool.num_free == 3
    pool.check([a])
    pool.release([a], "pin")
    assert pool.num_free == 4


def test_forgotten_content_is_plain() -> None:
    pool, index = make_pool(3)
    blocks = pool.allocate(3)
    for block in blocks[:2]:
        index.publish(bytes([block]), block)
    pool.release(blocks, "x")
    index.clear()
    assert pool.forget_contents() == (2, 1)
    assert sorted(pool.free_list) == [1, 2, 3]
    pool.check([])
    assert pool.forget_contents() == ()


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda pool: pool._refs.__setitem__(1, 2), "reference counts"),
        (lambda pool: pool._plain.append(3), "free twice"),
        (lambda pool: pool._plain.append(1), "a held block is in the free list"),
        (lambda pool: pool._plain.pop(), r"2 free \+ 1 held != 4"),
        (lambda pool: pool._cached.__setitem__(pool._plain.pop(), None), "kept for nothing"),
        (lambda pool: pool._content.publish(b"k", 3), "a useful block is taken first"),
    ],
)
def test_the_check_finds_every_damage(damage, complaint: str) -> None:
    pool, _ = make_pool()
    pool.allocate(1)
    pool.check([1])
    damage(pool)
    with pytest.raises(AssertionError, match=complaint):
        pool.check([1])


def test_counters_equal_the_lengths_of_their_lists_after_every_operation() -> None:
    """Scenario 54, one tier: 300 random operations."""
    rng = Random(1)
    pool, index = make_pool(4)
    held: list[int] = []
    for number in range(300):
        if held and rng.random() < 0.5:
            block = held.pop(rng.randrange(len(held)))
            if rng.random() < 0.5 and not index.holds(block):
                index.publish(number.to_bytes(2, "big"), block)
            pool.release([block], "x")
        elif pool.num_free and rng.random() < 0.8:
            held += pool.allocate(1)
        elif held:
            block = rng.choice(held)
            pool.acquire(block)
            held.append(block)
        else:
            index.clear()
            pool.forget_contents()
        pool.check(held)
        assert pool.num_free == len(pool.free_list) == 4 - len(set(held))


def test_without_an_index_nothing_is_worth_keeping() -> None:
    pool = BlockPool(2, NoPrefixIndex())
    pool.release(pool.allocate(2), "x")
    assert pool.allocate(2) == [2, 1]
    assert pool.num_evictions == 0
