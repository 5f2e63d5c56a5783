"""What the placeholders of a prompt stand for, as part of the keys of its blocks."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from baseboard.contract.media import MediaSpan

_BY_END: Final = attrgetter("end")


class MediaKeys:
    """An ``ExtraKeys``: blocks that overlap an input are told apart by its whole content id and by where it lies.

    ::

        B = 4      0 1 2 3 | 4 5 6 7 | 8 9 . .
        input            x   x x x x   x            offset 3, length 6
        block 0: (3, 6, id)    block 1: (-1, 6, id)    block 2: (-5, 6, id)
    """

    def __init__(self, spans: Sequence[MediaSpan]) -> None:
        self._spans: Final = tuple(spans)  # in order, not overlapping

    def between(self, first: int, end: int) -> bytes:
        spans = self._spans
        parts: list[bytes] = []
        for at in range(bisect_right(spans, first, key=_BY_END), len(spans)):
            span = spans[at]
            if span.offset >= end:
                break
            key = span.content_key
            parts.append(array("q", (span.offset - first, span.length, len(key))).tobytes() + key)
        return b"".join(parts)


def media_keys(spans: Sequence[MediaSpan]) -> MediaKeys | None:
    """None where there is nothing to add."""
    return MediaKeys(spans) if spans else None
