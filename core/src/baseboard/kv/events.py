"""What changes in the prefix index, block by block, for somebody who keeps a copy of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from baseboard.kv.prefix import KEY_BYTES, PrefixIndex


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Consecutive blocks of one text, in one layer group, can be hit from now on."""

    keys: tuple[bytes, ...]
    parent: bytes | None  #: key of the block before the first; None at the beginning of a text
    token_ids: tuple[int, ...]  #: of all these blocks
    block_size: int


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class IndexCleared:
    """Nothing can be hit any more."""


KVEvent: TypeAlias = BlocksStored | BlocksRemoved | IndexCleared


class RecordedIndex(PrefixIndex):
    """A prefix index that notes which keys it learned and which it lost. Where nobody asks, the plain one is used."""

    def __init__(self, block_size: int) -> None:
        super().__init__()
        self._block_size: Final = block_size
        self._events: list[KVEvent] = []
        self._new: list[bytes] = []

    def take(self) -> tuple[KVEvent, ...]:
        """Changes since the last call, in order."""
        taken = tuple(self._events)
        self._events = []
        return taken

    def publish(self, key: bytes, block: int) -> None:
        before = self.num_entries
        super().publish(key, block)
        if self.num_entries > before:
            self._new.append(key)

    def forget(self, block: int) -> None:
        key = self._key_of[block]
        super().forget(block)
        if key is not None:
            self._events.append(BlocksRemoved((key,)))

    def clear(self) -> None:
        super().clear()
        self._events.append(IndexCleared())

    def describe(self, keys: Sequence[bytes], tokens: Sequence[int]) -> None:
        places = {key: at for at, key in enumerate(keys)}
        new, self._new = self._new, []
        run: list[bytes] = []
        for key in new:
            if run and (_group_of(key) != _group_of(run[0]) or places[_text_of(key)] != places[_text_of(run[-1])] + 1):
                self._tell(run, keys, tokens)
                run = []
            run.append(key)
        if run:
            self._tell(run, keys, tokens)

    def _tell(self, run: list[bytes], keys: Sequence[bytes], tokens: Sequence[int]) -> None:
        """Blocks of one layer group that follow each other."""
        begin = keys.index(_text_of(run[0]))
        size = self._block_size
        parent = keys[begin - 1] + _group_of(run[0]) if begin else None
        text = tuple(tokens[begin * size : (begin + len(run)) * size])
        self._events.append(BlocksStored(tuple(run), parent, text, size))


def _text_of(key: bytes) -> bytes:
    """Of a group's key, the part that stands for the text."""
    return key[:KEY_BYTES]


def _group_of(key: bytes) -> bytes:
    return key[KEY_BYTES:]
