"""Sources: what was computed elsewhere and can be had from there. PrefixSource: keys and values of tokens;
EncoderSource: what an encoder made of an input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from baseboard.contract.media import ContentId
from baseboard.request.request import Request


class Landing(Enum):
    NOW = "now"  #: the executor fetches it in the step that admits the request
    LATER = "later"  #: it is being sent: the request waits and holds the blocks it goes to


@dataclass(frozen=True, slots=True)
class Found:
    """Tokens beyond the local prefix whose keys and values can be had: whole blocks, short of the last token."""

    num_tokens: int
    landing: Landing


@dataclass(frozen=True, slots=True)
class Place:
    """Where found tokens are to go."""

    blocks: Sequence[int]  #: the request's whole block table
    first: int  #: position of the first token
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Sending:
    """What a source is to send once every step planned until now has run.

    Until then a step under way may still write to the blocks, or read them, for whoever held them before::

        plan 7   writes block 5 for x          x is preempted, block 5 is free
        plan 8   y waits for keys and values, to be put into block 5
                 7 and 8 have run              now they may be sent
    """

    source: PrefixSource
    request: Request
    place: Place

    def begin(self) -> None:
        self.source.begin(self.request, self.place)


@dataclass(frozen=True, slots=True)
class Landed:
    """What was sent for a request is there: its first ``num_good`` tokens; the rest, if any, was lost."""

    request: Request
    num_good: int


class PrefixSource(Protocol):
    """Something outside that has keys and values. At the beginning of each step it is asked what has come about."""

    def find(self, request: Request, num_local: int) -> Found | None:
        """What there is beyond the ``num_local`` tokens in the local cache; asked each time it might be admitted."""
        ...

    def begin(self, request: Request, place: Place) -> None:
        """Start sending what was found to land later: nothing under way touches these blocks any more.

        ``landed`` is to name the request once.
        """
        ...

    def cancel(self, request: Request) -> None:
        """The request has ended or lost its place: from the return of this call on nothing is written for it."""
        ...

    def handover(self, request: Request) -> Mapping[str, Any] | None:
        """What somebody who goes on elsewhere has to know of the keys and values of a request that ends now.

        It comes back as ``Request.kv_transfer``; None where there is nothing to say. Asked before :meth:`keeps`.
        """
        ...

    def keeps(self, request: Request) -> bool:
        """Whether the blocks of a request that ends now are still being read: then ``read_out`` is to name it once."""
        ...

    def landed(self) -> Sequence[Landed]:
        """What has landed since the last call."""
        ...

    def read_out(self) -> Sequence[Request]:
        """Ended requests whose blocks nobody reads any more, since the last call."""
        ...


class EncoderSource(Protocol):
    """Something outside that has encodings of inputs."""

    def find(self, content: ContentId) -> Landing | None:
        """``NOW``: the executor can fetch it; ``LATER``: it is on its way here, ask again in the next step; or None.

        A request waits as long as the answer is ``LATER``: whoever gives it sees to it that this ends.
        """
        ...
