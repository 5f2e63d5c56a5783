"""Keys of blocks that hold inputs: content id and place, and nothing where there is no input."""

from __future__ import annotations

from array import array
from hashlib import blake2b
from random import Random

import pytest

from baseboard.contract.media import MediaSpan
from baseboard.kv.media import MediaKeys, media_keys
from baseboard.kv.prefix import KeyChain

TOKEN = "i"  #: how the bytes of a token go into a key


def chain(num_tokens: int, *spans: MediaSpan, block_size: int = 4) -> list[bytes]:
    keys = KeyChain(b"", block_size, media_keys(spans))
    keys.extend([9] * num_tokens, num_tokens // block_size)
    return keys.keys


def words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)


def test_a_block_is_told_apart_by_content_and_place() -> None:
    """The picture of ``MediaKeys``, by hand."""
    keys = MediaKeys([MediaSpan(3, 6, b"id", 1)])
    assert keys.between(0, 4) == words(3, 6, 3) + b"bid"
    assert keys.between(4, 8) == words(-1, 6, 3) + b"bid"
    assert keys.between(8, 12) == words(-5, 6, 3) + b"bid"
    assert keys.between(12, 16) == b""


def test_the_key_of_a_block_is_the_hash_of_tokens_and_inputs() -> None:
    start = blake2b(b"", digest_size=16).digest()
    tokens = array(TOKEN, [9] * 4).tobytes()
    first = blake2b(start + tokens + words(3, 6, 3) + b"bid", digest_size=16).digest()
    second = blake2b(first + tokens + words(-1, 6, 3) + b"bid", digest_size=16).digest()
    assert chain(8, MediaSpan(3, 6, b"id", 1)) == [first, second]


def test_nothing_is_added_where_there_is_no_input() -> None:
    """Row 32: as if there were none, before the first and without any."""
    assert media_keys(()) is None
    plain, marked = chain(16), chain(16, MediaSpan(8, 2, "x", 1))
    assert marked[:2] == plain[:2]
    assert not set(marked[2:]) & set(plain)  # all that follows is another text


@pytest.mark.parametrize("seed", range(20))
def test_between_finds_what_a_plain_search_finds(seed: int) -> None:
    rng = Random(seed)
    spans, at = [], 0
    while at < 40:
        at += rng.randint(0, 4)
        spans.append(MediaSpan(at, rng.randint(1, 7), rng.randint(0, 5), 1))
        at = spans[-1].end
    keys = MediaKeys(spans)
    for first in range(50):
        for end in range(first + 1, first + 6):
            found = [span for span in spans if set(range(span.offset, span.end)) & set(range(first, end))]
            assert keys.between(first, end) == b"".join(
                words(span.offset - first, span.length, 17) + span.content_key for span in found
            )


def test_keys_may_be_computed_bit_by_bit_and_copied() -> None:
    spans = (MediaSpan(1, 2, "x", 1), MediaSpan(5, 9, "y", 1))
    keys = KeyChain(b"", 4, media_keys(spans))
    keys.extend([9] * 16, 1)
    twin = keys.copy()
    for blocks in (2, 2, 4):
        keys.extend([9] * 16, blocks)
    twin.extend([9] * 16, 4)
    assert keys.keys == twin.keys == chain(16, *spans)
