"""The book of encodings: references, room, and who goes first."""

from __future__ import annotations

from random import Random

import pytest

from baseboard.kv.encoder import EncoderCache


def test_an_encoding_is_shared_and_kept_until_its_room_is_needed() -> None:
    cache = EncoderCache(10)
    assert cache.acquire("x", 6) == []
    assert cache.acquire("x", 6) == []
    cache.release("x")
    assert (cache.room, cache.units_held) == (4, 6)
    cache.release("x")
    assert (cache.room, cache.units_held) == (10, 0)
    assert "x" in cache
    assert cache.acquire("y", 4) == []  # both fit
    assert cache.acquire("z", 1) == ["x"]
    assert cache.contents == {"y", "z"}
    assert cache.num_evictions == 1
    cache.check(["y", "z"])


def test_the_least_recently_used_goes_first_and_no_more_than_must() -> None:
    cache = EncoderCache(9)
    for content in "abc":
        cache.acquire(content, 3)
    for content in "bac":
        cache.release(content)
    cache.acquire("b", 3)
    cache.release("b")
    assert cache.acquire("d", 4) == ["a", "c"]
    assert cache.contents == {"b", "d"}


def test_what_one_more_user_needs() -> None:
    cache = EncoderCache(10)
    assert cache.units_to_hold("x", 6) == 6
    cache.acquire("x", 6)
    assert cache.units_to_hold("x", 6) == 0
    cache.release("x")
    assert cache.units_to_hold("x", 99) == 6  # it costs what it cost when it was made


def test_forgetting() -> None:
    cache = EncoderCache(10)
    for content in ("x", "y", "z"):
        cache.acquire(content, 3)
    cache.release("x")
    cache.release("z")
    cache.forget("x")
    assert cache.contents == {"y", "z"}
    assert cache.forget_idle() == ["z"]
    assert cache.contents == {"y"}
    cache.check(["y"])
    assert cache.acquire("w", 7) == []


def test_the_check_notices_a_lost_reference() -> None:
    cache = EncoderCache(10)
    cache.acquire("x", 3)
    with pytest.raises(AssertionError, match="users of encodings"):
        cache.check([])
    with pytest.raises(AssertionError, match="which is not in the encoder cache"):
        cache.check(["x", "y"])


@pytest.mark.parametrize("seed", range(10))
def test_against_a_plain_model(seed: int) -> None:
    """A list of (content, references), least recently idle first, is all that an encoder cache is."""
    rng = Random(seed)
    cost = {content: rng.randint(1, 6) for content in range(8)}
    cache, model, held = EncoderCache(12), {}, []
    for _ in range(400):
        content = rng.randint(0, 7)
        in_use = sum(cost[each] for each, refs in model.items() if refs)
        if held and rng.randint(0, 1):
            content = held.pop(rng.randrange(len(held)))
            refs = model.pop(content)
            model[content] = refs - 1  # to the end of the line
            cache.release(content)
        elif model.get(content) or in_use + cost[content] <= 12:
            expected = []
            for other in [each for each, refs in model.items() if not refs and each != content]:
                if content in model or sum(map(cost.__getitem__, model)) + cost[content] <= 12:
                    break
                expected.append(other)
                del model[other]
            model[content] = model.get(content, 0) + 1
            held.append(content)
            assert cache.acquire(content, cost[content]) == expected
        assert cache.contents == set(model)
        assert cache.room == 12 - sum(cost[each] for each, refs in model.items() if refs)
        cache.check(held)
