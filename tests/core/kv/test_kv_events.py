"""Row 32: whoever replays the events of the prefix index knows what can be hit."""

from __future__ import annotations

from array import array
from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baseboard.kv.events import BlocksRemoved, BlocksStored, IndexCleared, KVEvent, RecordedIndex
from baseboard.kv.group import WHOLE, LayerGroup, PoolShape
from baseboard.kv.manager import KVCacheManager
from baseboard.kv.prefix import PrefixIndex
from baseboard.testing import Simulation
from core.simulation.replica import Replica
from core.simulation.texts import run_alone, text


def key(parent: bytes, tokens: list[int]) -> bytes:
    return blake2b(parent + array("i", tokens).tobytes(), digest_size=16).digest()


ROOT = blake2b(b"", digest_size=16).digest()


def recorded(num_blocks: int, block_size: int, groups: tuple[LayerGroup, ...] = (WHOLE,)) -> KVCacheManager:
    return KVCacheManager(PoolShape(num_blocks, block_size), 0, RecordedIndex(block_size), groups)


def taken(kv: KVCacheManager) -> tuple[KVEvent, ...]:
    assert isinstance(kv.index, RecordedIndex)
    return kv.index.take()


def put(kv: KVCacheManager, owner: str, tokens: list[int]) -> None:
    """Compute all of a text and publish it."""
    kv.open(owner)
    hit = kv.match(owner, tokens)
    kv.admit(owner, hit)
    assert kv.extend(owner, hit.num_tokens, len(tokens) - hit.num_tokens) is not None
    kv.settle(owner, tokens, len(tokens))


def test_a_text_is_told_with_the_key_of_what_it_goes_on_from() -> None:
    kv = recorded(8, 2)
    put(kv, "a", [1, 2, 3, 4, 5])
    first = key(ROOT, [1, 2])
    second = key(first, [3, 4])
    assert taken(kv) == (BlocksStored((first, second), None, (1, 2, 3, 4), 2),)
    assert taken(kv) == ()
    put(kv, "b", [1, 2, 3, 4, 6, 7])
    assert taken(kv) == (BlocksStored((key(second, [6, 7]),), second, (6, 7), 2),)
    put(kv, "c", [1, 2, 3, 4])
    assert taken(kv) == (), "nothing new"


def test_what_is_known_already_cuts_a_text_in_two() -> None:
    """Both compute the same beginning side by side; the middle block is published by the other one first."""
    kv = recorded(8, 2)
    tokens = [1, 2, 3, 4, 5, 6]
    for owner in ("a", "b"):
        kv.open(owner)
        kv.extend(owner, 0, 6)
    first, second = key(ROOT, [1, 2]), key(key(ROOT, [1, 2]), [3, 4])
    kv.settle("a", tokens, 4)
    kv.index.forget(kv.held("a")[0])
    taken(kv)
    kv.settle("b", tokens, 6)
    assert taken(kv) == (
        BlocksStored((first,), None, (1, 2), 2),
        BlocksStored((key(second, [5, 6]),), second, (5, 6), 2),
    )


def test_a_block_that_is_taken_for_something_else_is_told_before_what_it_gets() -> None:
    kv = recorded(2, 2)
    put(kv, "a", [1, 2, 3, 4])
    kv.close("a")
    taken(kv)
    put(kv, "b", [5, 6])
    tail, head = key(key(ROOT, [1, 2]), [3, 4]), key(ROOT, [5, 6])
    assert taken(kv) == (BlocksRemoved((tail,)), BlocksStored((head,), None, (5, 6), 2))


def test_each_layer_group_tells_of_its_own_blocks() -> None:
    """Group 1 sees 3 tokens; the same text has a block, and a key, in each."""
    kv = recorded(16, 2, (WHOLE, LayerGroup(3)))
    put(kv, "a", [1, 2, 3, 4, 5])
    first = key(ROOT, [1, 2])
    second = key(first, [3, 4])
    assert taken(kv) == (
        BlocksStored((first, second), None, (1, 2, 3, 4), 2),
        BlocksStored((first + b"\x01", second + b"\x01"), None, (1, 2, 3, 4), 2),
    )
    kv.settle("a", [1, 2, 3, 4, 5, 6], 6)
    third = key(second, [5, 6])
    assert taken(kv) == (
        BlocksStored((third,), second, (5, 6), 2),
        BlocksStored((third + b"\x01",), second + b"\x01", (5, 6), 2),
    )


def test_a_reset_clears_everything_at_once() -> None:
    kv = recorded(4, 2)
    put(kv, "a", [1, 2, 3])
    kv.reset_index()
    assert taken(kv)[-1] == IndexCleared()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 2), min_size=1, max_size=9)), max_size=40),
    st.sampled_from((1, 2, 3)),
)
def test_replaying_the_events_gives_the_index(actions: list[tuple[int, list[int]]], block_size: int) -> None:
    """Texts of few letters, so that many share beginnings; a pool so small that most are evicted again."""
    kv = recorded(8, block_size)
    replica = Replica(plain_texts=True)
    for number, (action, tokens) in enumerate(actions):
        if action == 5:
            kv.reset_index()
        elif kv.pool.num_free >= kv.blocks_for(len(tokens)) + 1:
            put(kv, str(number), tokens)
            kv.close(str(number))
        if action % 2:
            replica.apply(taken(kv))
    replica.apply(taken(kv))
    index = kv.index
    assert set(replica.texts) == set(index._block_of)


def test_the_simulation_hands_them_out_step_by_step() -> None:
    sim = Simulation(8, 4, kv_events=True)
    run_alone(sim, text(9), max_tokens=3)
    (stored,) = sim.scheduler.take_kv_events()
    assert (stored.token_ids, stored.parent, stored.block_size) == (tuple(text(8)), None, 4)
    h = sim.submit([*text(8), 1, 2, 3], max_tokens=3)
    sim.step()
    assert sim.scheduler.take_kv_events() == ()
    sim.step()
    (stored,) = sim.scheduler.take_kv_events()
    assert stored.token_ids == (1, 2, 3, h.tokens[0])


def test_who_did_not_ask_gets_nothing_and_pays_nothing() -> None:
    sim = Simulation(8, 4)
    run_alone(sim, text(9), max_tokens=3)
    assert sim.scheduler.take_kv_events() == ()
    assert type(sim.scheduler.kv.index) is PrefixIndex


def test_events_of_a_prefix_cache_that_is_off_are_refused() -> None:
    with pytest.raises(ValueError, match="enable prefix_caching, or do without them"):
        Simulation(8, 4, kv_events=True, prefix_caching=False)
