"""Row 37: the pool of a device that does not run its steps in order."""

from __future__ import annotations

import pytest

from baseboard.kv.limbo import LimboPool
from baseboard.kv.pool import BlockError
from baseboard.kv.prefix import PrefixIndex


def make_pool(num_blocks: int = 6) -> tuple[LimboPool, PrefixIndex]:
    index = PrefixIndex()
    return LimboPool(num_blocks, index), index


def test_a_block_rests_until_every_step_planned_before_it_came_back_has_landed() -> None:
    pool, _ = make_pool()
    blocks = pool.allocate(3)
    pool.planned(0)
    pool.planned(1)
    pool.release(blocks[:1], "a")
    pool.planned(2)
    pool.release(blocks[1:], "a")
    assert (pool.num_free, pool.num_coming, pool.free_list) == (3, 3, [4, 5, 6])
    pool.landed(0)
    assert pool.num_coming == 3
    pool.landed(1)
    assert (pool.num_free, pool.num_coming, pool.free_list) == (4, 2, [4, 5, 6, 1])
    pool.landed(2)
    assert (pool.num_free, pool.num_coming, pool.free_list) == (6, 0, [4, 5, 6, 1, 3, 2])
    pool.check([])


def test_with_nothing_under_way_a_block_is_free_at_once() -> None:
    pool, _ = make_pool()
    pool.release(pool.allocate(2), "a")
    pool.planned(0)
    pool.landed(0)
    pool.release(pool.allocate(2), "a")
    assert (pool.num_free, pool.num_coming) == (6, 0)


def test_a_block_that_others_still_hold_does_not_rest() -> None:
    pool, _ = make_pool()
    (block,) = pool.allocate(1)
    pool.acquire(block)
    pool.planned(0)
    pool.release([block], "a")
    assert (pool.num_coming, pool.refs(block)) == (0, 1)
    pool.release([block], "b")
    assert (pool.num_coming, pool.refs(block)) == (1, 0)
    pool.check([])


def test_what_was_published_is_kept_when_it_has_rested_and_can_be_held_before() -> None:
    pool, index = make_pool()
    hit, kept = pool.allocate(2)
    index.publish(b"hit", hit)
    index.publish(b"kept", kept)
    pool.planned(0)
    pool.release([hit, kept], "a")
    pool.acquire(hit)
    assert (pool.refs(hit), pool.num_coming) == (1, 1)
    pool.landed(0)
    assert pool.free_list[-1] == kept
    assert pool.num_evictions == 0
    pool.check([hit])
    pool.acquire(kept)
    pool.check([hit, kept])


def test_a_block_that_rests_cannot_be_released_again() -> None:
    pool, _ = make_pool()
    blocks = pool.allocate(1)
    pool.planned(0)
    pool.release(blocks, "a")
    with pytest.raises(BlockError, match="'a' releases block 1, which is free already"):
        pool.release(blocks, "a")


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda pool: pool._plain.__setitem__(0, 1), "block rests and is free"),
        (lambda pool: pool._resting.pop(1), r"2 free \+ 0 held != 3"),
        (lambda pool: pool.__setattr__("_landed", 0), "rest though nothing is under way"),
    ],
)
def test_the_check_finds_every_damage(damage, complaint: str) -> None:
    pool, _ = make_pool(3)
    blocks = pool.allocate(1)
    pool.planned(0)
    pool.release(blocks, "a")
    pool.check([])
    damage(pool)
    with pytest.raises(AssertionError, match=complaint):
        pool.check([])
