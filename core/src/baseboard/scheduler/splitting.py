"""Where a chunk may end, given the inputs that its positions hold."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, Protocol

from baseboard.contract.media import MediaSpan

_BY_END: Final = attrgetter("end")


def spans_within(media: Sequence[MediaSpan], first: int, end: int) -> range:
    """Which of the spans overlap positions ``first .. end - 1``; they are in order and do not overlap each other."""
    begin = bisect_right(media, first, key=_BY_END)
    stop = begin
    while stop < len(media) and media[stop].offset < end:
        stop += 1
    return range(begin, stop)


class Splitting(Protocol):
    def end(self, media: Sequence[MediaSpan], start: int, wanted: int, possible: int) -> int:
        """Where a chunk that begins at ``start`` ends: at ``wanted``, were there no inputs; at ``possible`` at most.

        ``possible`` is ``wanted``, or the offset of the first input that cannot be had now; ``start`` is no chunk.
        """
        ...

    def together(self, media: Sequence[MediaSpan]) -> Iterable[Sequence[MediaSpan]]:
        """Which inputs one step must be able to have at once."""
        ...

    def tokens_at_once(self, span: MediaSpan) -> int:
        """Positions of an input that one chunk must be able to take."""
        ...


class Anywhere:
    """In the middle of an input, too."""

    def end(self, media: Sequence[MediaSpan], start: int, wanted: int, possible: int) -> int:
        del media, start, wanted
        return possible

    def together(self, media: Sequence[MediaSpan]) -> Iterable[Sequence[MediaSpan]]:
        return ((span,) for span in media)

    def tokens_at_once(self, span: MediaSpan) -> int:
        del span
        return 1


class BetweenInputs:
    """Before or behind an input: it is computed as a whole."""

    def end(self, media: Sequence[MediaSpan], start: int, wanted: int, possible: int) -> int:
        del wanted
        for at in spans_within(media, possible - 1, possible):
            if possible < media[at].end:
                return max(start, media[at].offset)
        return possible

    def together(self, media: Sequence[MediaSpan]) -> Iterable[Sequence[MediaSpan]]:
        return ((span,) for span in media)

    def tokens_at_once(self, span: MediaSpan) -> int:
        return span.length


class Nowhere:
    """A chunk is cut for no input: it gets all of them or waits."""

    def end(self, media: Sequence[MediaSpan], start: int, wanted: int, possible: int) -> int:
        del media
        return possible if possible == wanted else start

    def together(self, media: Sequence[MediaSpan]) -> Iterable[Sequence[MediaSpan]]:
        return (media,)

    def tokens_at_once(self, span: MediaSpan) -> int:
        del span
        return 1  # a whole prompt has been found to fit
