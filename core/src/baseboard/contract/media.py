"""Inputs that an encoder reads (images, audio): where a prompt holds them, and what a step does about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from baseboard.contract.errors import RequestRejected

#: What an encoding is known by, the same wherever the same content occurs: a number below 2**128, a text or bytes.
ContentId: TypeAlias = int | str | bytes

_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Positions ``offset .. offset + length - 1`` of a prompt hold placeholders for what the encoder makes of an input.

    ``cost`` is counted in units of the encoder: what one step may compute, and what its cache holds, at most.
    Raises ``RequestRejected`` for a span that no prompt can have.
    """

    offset: int
    length: int
    content_id: ContentId
    cost: int

    def __post_init__(self) -> None:
        for name, value, least in (("offset", self.offset, 0), ("length", self.length, 1), ("cost", self.cost, 1)):
            if value < least:
                raise RequestRejected(f"{self}: {name}={value} must be at least {least}")
        if self.content_id in {"", b""}:
            raise RequestRejected(f"{self}: the content id is empty, so different inputs would pass for one")
        if isinstance(self.content_id, int) and not 0 <= self.content_id < 1 << (8 * _ID_BYTES):
            raise RequestRejected(
                f"{self}: a content id that is a number must be 0 to 2**{8 * _ID_BYTES} - 1; use bytes"
            )

    @property
    def end(self) -> int:
        """The first position behind it."""
        return self.offset + self.length

    @property
    def content_key(self) -> bytes:
        """The whole content id as bytes; ids that differ, in kind or value, give different bytes."""
        if isinstance(self.content_id, int):
            return b"i" + self.content_id.to_bytes(_ID_BYTES, "big")
        return (
            b"s" + self.content_id.encode("utf-8", "surrogatepass")
            if isinstance(self.content_id, str)
            else b"b" + self.content_id
        )


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """One input that a step brings into the encoder cache, on behalf of row ``id``."""

    id: str
    span: MediaSpan
