"""Rank: in which order requests are served, and from which end they are evicted."""

from __future__ import annotations

from typing import Final, Protocol

from baseboard.request.request import RankKey, RequestSpec


class Rank(Protocol):
    def key(self, spec: RequestSpec) -> RankKey:
        """The smallest key is served first. Keys of live requests must differ."""
        ...


class FirstComeFirstServed:
    """By arrival; the samples of one request stand together."""

    def key(self, spec: RequestSpec) -> RankKey:
        return (spec.arrival, spec.sample_index)


class Priority:
    """By priority, lower first; by arrival among equals."""

    def key(self, spec: RequestSpec) -> RankKey:
        return (spec.priority, spec.arrival, spec.sample_index)


#: How many later requests one step of priority lets a request pass.
AGING_STEP: Final = 64


class Aging:
    """By priority, but nobody is overtaken for ever: who waits gets better against whoever comes later.

    A request passes at most ``AGING_STEP`` earlier ones for each step by which its priority is the lower number.
    """

    def key(self, spec: RequestSpec) -> RankKey:
        return (spec.arrival + AGING_STEP * spec.priority, spec.arrival, spec.sample_index)
