"""The prefix index: which block holds the keys and values of which beginning of text."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, Protocol

from baseboard.kv.pool import NULL_BLOCK

KEY_BYTES: Final = 16


class ExtraKeys(Protocol):
    """What a block holds beside its tokens."""

    def between(self, first: int, end: int) -> bytes:
        """Of positions ``first .. end - 1``: nothing, or bytes that differ wherever the content does."""
        ...


class KeyChain:
    """Keys of one sequence's full blocks, computed as they fill.

    ``key[i] = blake2b(key[i - 1] + token ids of block i as little-endian int32 + extra keys of block i)``, 128 bits,
    where ``key[-1]`` is the hash of the namespace: so a key stands for everything from the beginning of the text, and
    never for the same text of somebody else. Equal in every process.
    """

    __slots__ = ("_extra", "_last", "_tokens_per_block", "keys")

    def __init__(self, namespace: bytes, tokens_per_block: int, extra: ExtraKeys | None = None) -> None:
        self._last = blake2b(namespace, digest_size=KEY_BYTES).digest()
        self._tokens_per_block = tokens_per_block
        self._extra = extra
        self.keys: Final[list[bytes]] = []

    def extend(self, tokens: Sequence[int], num_blocks: int) -> None:
        """Compute the keys of blocks up to ``num_blocks``; ``tokens`` is the whole sequence."""
        size = self._tokens_per_block
        done = len(self.keys)
        raw = array("i", tokens[done * size : num_blocks * size]).tobytes()
        step = size * 4
        if self._extra is not None:
            self._extend_with_extra(raw, step, self._extra)
            return
        last = self._last
        for at in range(0, len(raw), step):
            last = blake2b(last + raw[at : at + step], digest_size=KEY_BYTES).digest()
            self.keys.append(last)
        self._last = last

    def _extend_with_extra(self, raw: bytes, step: int, extra: ExtraKeys) -> None:
        size = self._tokens_per_block
        for begin in range(0, len(raw), step):
            first = len(self.keys) * size
            block = raw[begin : begin + step] + extra.between(first, first + size)
            self._last = blake2b(self._last + block, digest_size=KEY_BYTES).digest()
            self.keys.append(self._last)

    def copy(self) -> KeyChain:
        twin = KeyChain(b"", self._tokens_per_block, self._extra)
        twin._last = self._last
        twin.keys.extend(self.keys)
        return twin


class PrefixCache(Protocol):
    """What the KV manager asks of an index; it is also the pool's judge of what content is of use."""

    @property
    def num_entries(self) -> int: ...

    def full_blocks(self, num_tokens: int, block_size: int) -> int:
        """How many blocks of a sequence are worth a key."""
        ...

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """Blocks of the longest known beginning of ``keys``."""
        ...

    def find_each(self, keys: Sequence[bytes]) -> list[int]:
        """For each key its block, or the null block where it is not known."""
        ...

    def publish(self, key: bytes, block: int) -> None: ...
    def describe(self, keys: Sequence[bytes], tokens: Sequence[int]) -> None:
        """What was published since the last call is among ``keys``, those of the full blocks of the text ``tokens``."""
        ...

    def holds(self, block: int) -> bool: ...
    def forget(self, block: int) -> None: ...
    def clear(self) -> None: ...
    def check(self) -> None: ...


class PrefixIndex:
    """Key to block and back. A key that is known already keeps its first block."""

    def __init__(self) -> None:
        self._block_of: Final[dict[bytes, int]] = {}
        self._key_of: Final[list[bytes | None]] = []  # by block; as long as the largest that was ever published

    @property
    def num_entries(self) -> int:
        return len(self._block_of)

    def full_blocks(self, num_tokens: int, block_size: int) -> int:
        return num_tokens // block_size

    def find(self, keys: Sequence[bytes]) -> list[int]:
        found: list[int] = []
        block_of = self._block_of
        for key in keys:
            block = block_of.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def find_each(self, keys: Sequence[bytes]) -> list[int]:
        return [self._block_of.get(key, NULL_BLOCK) for key in keys]

    def publish(self, key: bytes, block: int) -> None:
        if key not in self._block_of:
            self._block_of[key] = block
            if block >= len(self._key_of):
                self._key_of.extend([None] * (block + 1 - len(self._key_of)))
            self._key_of[block] = key

    def describe(self, keys: Sequence[bytes], tokens: Sequence[int]) -> None:
        """Nobody wants to know."""

    def holds(self, block: int) -> bool:
        return block < len(self._key_of) and self._key_of[block] is not None

    def forget(self, block: int) -> None:
        key = self._key_of[block]
        if key is None:
            raise KeyError(block)
        self._key_of[block] = None
        del self._block_of[key]

    def clear(self) -> None:
        self._block_of.clear()
        self._key_of.clear()

    def check(self) -> None:
        back = {key: block for block, key in enumerate(self._key_of) if key is not None}
        assert back == self._block_of, "the index contradicts itself"


class NoPrefixIndex:
    """Prefix caching switched off: knows nothing, keeps nothing, hashes nothing."""

    @property
    def num_entries(self) -> int:
        return 0

    def full_blocks(self, num_tokens: int, block_size: int) -> int:
        del num_tokens, block_size
        return 0

    def find(self, keys: Sequence[bytes]) -> list[int]:
        del keys
        return []

    def find_each(self, keys: Sequence[bytes]) -> list[int]:
        return [NULL_BLOCK] * len(keys)

    def publish(self, key: bytes, block: int) -> None:
        del key, block

    def describe(self, keys: Sequence[bytes], tokens: Sequence[int]) -> None:
        del keys, tokens

    def holds(self, block: int) -> bool:
        del block
        return False

    def forget(self, block: int) -> None:
        del block

    def clear(self) -> None:
        pass

    def check(self) -> None:
        pass
