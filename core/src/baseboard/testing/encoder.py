"""The simulated encoder: what lies in a slot of an input's position depends on the input, not on its placeholder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from operator import attrgetter
from typing import Final, TypeAlias

from baseboard.contract.media import ContentId, EncoderInput, MediaSpan
from baseboard.contract.plan import StepPlan
from baseboard.scheduler.splitting import spans_within
from baseboard.testing.model import POISON

#: As ``Simulation.submit`` takes it: offset, length, content id and cost.
MediaItem: TypeAlias = tuple[int, int, ContentId, int]
#: Fetches an encoding from outside; whether it was there.
FetchEncoding: TypeAlias = Callable[[ContentId], bool]


def media_spans(items: Sequence[MediaItem]) -> tuple[MediaSpan, ...]:
    """In order of their positions. Raises ``RequestRejected`` for one that no prompt can have."""
    return tuple(sorted((MediaSpan(*item) for item in items), key=attrgetter("offset")))


def no_encodings(_content: ContentId) -> bool:
    return False


def encode(span: MediaSpan) -> int:
    """What the encoder makes of an input: a number that is no token."""
    return -2 - int.from_bytes(blake2b(span.content_key, digest_size=7).digest(), "little")


def with_inputs(tokens: Sequence[int], media: Sequence[MediaSpan]) -> list[int]:
    """A text as the model sees it: at the positions of inputs, what the encoder makes of them."""
    seen = list(tokens)
    for span in media:
        encoding = encode(span)
        seen[span.offset : span.end] = [encoding - at for at in range(span.length)]
    return seen


class SimulatedEncoder:
    """Holds exactly what plans told it to make or fetch and not yet to drop."""

    def __init__(self, fetch: FetchEncoding = no_encodings) -> None:
        self._fetch: Final = fetch
        self._encodings: Final[dict[ContentId, int]] = {}

    @property
    def contents(self) -> frozenset[ContentId]:
        return frozenset(self._encodings)

    def drop(self, contents: Sequence[ContentId]) -> None:
        """One that a failed step was to make is not there."""
        for content in contents:
            self._encodings.pop(content, None)

    def run(self, plan: StepPlan) -> tuple[ContentId, ...]:
        """Fetch and make what the plan says; returns what turned out to be missing outside."""
        lost = [each.span.content_id for each in plan.encoder_loads if not self._keep(each)]
        for each in plan.encodes:
            self._encodings[each.span.content_id] = encode(each.span)
        return tuple(lost)

    def token(self, media: Sequence[MediaSpan], position: int, placeholder: int) -> int:
        """What is written at a position; where the encoding is missing, what no right text ever has."""
        for at in spans_within(media, position, position + 1):
            encoding = self._encodings.get(media[at].content_id)
            return POISON.token if encoding is None else encoding - (position - media[at].offset)
        return placeholder

    def needs(self, media: Sequence[MediaSpan], first: int, end: int, contents: Sequence[ContentId]) -> int | None:
        """The first of these positions that holds one of ``contents``, if any does."""
        for at in spans_within(media, first, end):
            if media[at].content_id in contents:
                return max(first, media[at].offset)
        return None

    def _keep(self, each: EncoderInput) -> bool:
        found = self._fetch(each.span.content_id)
        if found:
            self._encodings[each.span.content_id] = encode(each.span)
        return found
