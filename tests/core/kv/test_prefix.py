"""Keys of blocks, and the index from key to block."""

from __future__ import annotations

import subprocess
import sys
from hashlib import blake2b

import pytest

from baseboard.kv.prefix import KeyChain, NoPrefixIndex, PrefixIndex


def chain(tokens: list[int], namespace: bytes = b"", block_size: int = 4) -> list[bytes]:
    keys = KeyChain(namespace, block_size)
    keys.extend(tokens, len(tokens) // block_size)
    return keys.keys


def keys_by_hand(tokens: list[int], namespace: bytes = b"", block_size: int = 4) -> list[bytes]:
    """The definition, token by token."""
    last, keys = blake2b(namespace, digest_size=16).digest(), []
    for at in range(0, len(tokens) - block_size + 1, block_size):
        block = b"".join(token.to_bytes(4, "little", signed=True) for token in tokens[at : at + block_size])
        last = blake2b(last + block, digest_size=16).digest()
        keys.append(last)
    return keys


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize("namespace", [b"", b"tenant"])
def test_keys_are_what_they_are_defined_to_be(block_size: int, namespace: bytes) -> None:
    tokens = [0, 1, 2**31 - 1, 2**17, *range(60)]
    keys = chain(tokens, namespace, block_size)
    assert keys == keys_by_hand(tokens, namespace, block_size)
    assert {len(key) for key in keys} == {16}


def test_keys_are_equal_in_another_process() -> None:
    """Scenario 43: nothing depends on the interpreter's hash seed."""
    code = "from baseboard.kv.prefix import KeyChain; k = KeyChain(b'x', 4); k.extend(range(12), 3); print(k.keys)"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "77"}
    )
    assert ran.stdout.strip() == str(chain(list(range(12)), b"x"))


def test_keys_may_be_computed_bit_by_bit() -> None:
    tokens = list(range(32))
    keys = KeyChain(b"", 4)
    for blocks in (0, 1, 1, 3, 2, 8):
        keys.extend(tokens, blocks)
    assert keys.keys == chain(tokens)


def test_a_copy_goes_its_own_way() -> None:
    keys = KeyChain(b"n", 4)
    keys.extend(range(4), 1)
    twin = keys.copy()
    keys.extend([0, 1, 2, 3, 4, 5, 6, 7], 2)
    twin.extend([0, 1, 2, 3, 9, 9, 9, 9], 2)
    assert keys.keys == chain(list(range(8)), b"n")
    assert twin.keys == chain([0, 1, 2, 3, 9, 9, 9, 9], b"n")


def test_keys_of_different_namespaces_differ_in_every_block() -> None:
    """Scenario 44."""
    tokens = [7] * 64
    chains = [chain(tokens, namespace) for namespace in (b"", b"a", b"b")]
    for position in zip(*chains, strict=True):
        assert len(set(position)) == 3
    assert len(set(chains[0])) == 16, "equal blocks at different places have different keys"


def test_a_key_stands_for_all_that_comes_before() -> None:
    tokens = list(range(16))
    for at in range(16):
        other = list(tokens)
        other[at] += 100
        same = [a == b for a, b in zip(chain(tokens), chain(other), strict=True)]
        assert same == [block < at // 4 for block in range(4)]


def test_the_index_finds_the_longest_known_beginning() -> None:
    index = PrefixIndex()
    for block, key in enumerate((b"a", b"b", b"d"), 1):
        index.publish(key, block)
    assert index.find([b"a", b"b", b"c", b"d"]) == [1, 2]
    assert index.find([b"x", b"a"]) == []
    assert index.find([]) == []


def test_the_first_block_of_a_key_stays() -> None:
    index = PrefixIndex()
    index.publish(b"a", 1)
    index.publish(b"a", 2)
    assert index.find([b"a"]) == [1]
    assert (index.holds(1), index.holds(2), index.num_entries) == (True, False, 1)
    index.check()


def test_a_forgotten_block_is_found_no_more() -> None:
    index = PrefixIndex()
    index.publish(b"a", 1)
    index.publish(b"b", 2)
    index.forget(1)
    assert index.find([b"a", b"b"]) == []
    assert (index.holds(1), index.num_entries) == (False, 1)
    index.clear()
    assert (index.holds(2), index.num_entries) == (False, 0)


def test_the_check_finds_a_contradiction() -> None:
    index = PrefixIndex()
    index.publish(b"a", 1)
    index._key_of.append(b"a")
    with pytest.raises(AssertionError, match="contradicts itself"):
        index.check()


def test_the_index_that_is_switched_off_knows_nothing() -> None:
    index = NoPrefixIndex()
    index.publish(b"a", 1)
    index.forget(1)
    index.clear()
    index.check()
    assert (index.find([b"a"]), index.holds(1), index.num_entries) == ([], False, 0)
    assert index.full_blocks(1000, 4) == 0
    assert PrefixIndex().full_blocks(11, 4) == 2
