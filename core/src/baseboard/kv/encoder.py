"""Encodings by content id: who uses them, and which is given up when another needs the room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from baseboard.contract.media import ContentId


@dataclass(slots=True)
class _Entry:
    cost: int
    refs: int


class EncoderCache:
    """Room for ``size`` units; every operation costs O(1) for each encoding it touches.

    An encoding is held by those who use it, or idle: then it stays until its room is needed, least recently used
    first. Holds the book only; the encodings themselves lie in the executor.
    """

    def __init__(self, size: int) -> None:
        self.size: Final = size
        self._entries: Final[dict[ContentId, _Entry]] = {}
        self._idle: Final[OrderedDict[ContentId, None]] = OrderedDict()
        self._used = 0  # units of all entries
        self._held = 0  # units of those with references
        self.num_evictions = 0

    @property
    def contents(self) -> frozenset[ContentId]:
        return frozenset(self._entries)

    @property
    def room(self) -> int:
        """Units that can be had without taking an encoding from somebody who uses it."""
        return self.size - self._held

    @property
    def units_held(self) -> int:
        return self._held

    def __contains__(self, content: ContentId) -> bool:
        return content in self._entries

    def units_to_hold(self, content: ContentId, cost: int) -> int:
        """How much smaller ``room`` is for one more user of an encoding that would cost ``cost``."""
        entry = self._entries.get(content)
        if entry is None:
            return cost
        return 0 if entry.refs else entry.cost

    def acquire(self, content: ContentId, cost: int) -> list[ContentId]:
        """Take one reference; what is not there yet is put there, and others are given up for it, which are returned.

        The caller has made sure that ``room`` suffices.
        """
        entry = self._entries.get(content)
        dropped: list[ContentId] = []
        if entry is None:
            while self._used + cost > self.size:
                dropped.append(self._evict())
            entry = self._entries[content] = _Entry(cost, 0)
            self._used += cost
        elif not entry.refs:
            del self._idle[content]
        if not entry.refs:
            self._held += entry.cost
        entry.refs += 1
        return dropped

    def release(self, content: ContentId) -> None:
        """Give one reference back; an encoding that nobody uses stays until its room is needed."""
        entry = self._entries[content]
        entry.refs -= 1
        if not entry.refs:
            self._held -= entry.cost
            self._idle[content] = None

    def forget(self, content: ContentId) -> None:
        """An idle encoding is not there any more."""
        del self._idle[content]
        self._used -= self._entries.pop(content).cost

    def forget_idle(self) -> list[ContentId]:
        """Nothing that nobody uses is worth keeping; returns what was kept until now."""
        dropped = list(self._idle)
        for content in dropped:
            self.forget(content)
        return dropped

    def _evict(self) -> ContentId:
        content = next(iter(self._idle))
        self.forget(content)
        self.num_evictions += 1
        return content

    def check(self, holders: Iterable[ContentId]) -> None:
        """Raise ``AssertionError`` unless entries, idle ones and ``holders`` (one entry a reference) agree."""
        expected = dict.fromkeys(self._entries, 0)
        for content in holders:
            assert content in expected, f"somebody uses {content!r}, which is not in the encoder cache"
            expected[content] += 1
        assert expected == {content: entry.refs for content, entry in self._entries.items()}, (
            f"users of encodings are {expected}, but the cache counts {self._entries}"
        )
        assert set(self._idle) == {content for content, refs in expected.items() if not refs}
        assert self._used == sum(entry.cost for entry in self._entries.values()) <= self.size
        assert self._held == sum(entry.cost for entry in self._entries.values() if entry.refs)
