"""Requests in the order of their rank."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter
from typing import Final

from baseboard.request.request import Request

_BY_RANK: Final = attrgetter("rank")


class RankedQueue:
    """A list kept sorted by rank: adding at the end, the common case, costs O(1)."""

    def __init__(self) -> None:
        self._items: Final[list[Request]] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._items)

    @property
    def items(self) -> Sequence[Request]:
        """The list itself, best rank first: it changes under whoever walks it."""
        return self._items

    def add(self, request: Request) -> None:
        items = self._items
        if not items or items[-1].rank < request.rank:
            items.append(request)
        else:
            insort(items, request, key=_BY_RANK)

    def remove(self, request: Request) -> None:
        at = bisect_left(self._items, request.rank, key=_BY_RANK)
        if at == len(self._items) or self._items[at] is not request:
            raise KeyError(request.id)
        del self._items[at]


class RunningQueue(RankedQueue):
    """The running requests, with what gates ask of all of them kept at hand."""

    def __init__(self) -> None:
        super().__init__()
        self.num_places = 0  #: places that they take, samples still to be forked included
        self._adapters: Final[dict[str, int]] = {}  # how many run on each

    @property
    def adapters(self) -> Collection[str]:
        """Distinct LoRA adapters in use."""
        return self._adapters.keys()

    def add(self, request: Request) -> None:
        super().add(request)
        self.num_places += request.width
        if (adapter := request.spec.adapter) is not None:
            self._adapters[adapter] = self._adapters.get(adapter, 0) + 1

    def remove(self, request: Request) -> None:
        super().remove(request)
        self.num_places -= request.width
        if (adapter := request.spec.adapter) is not None:
            self._adapters[adapter] -= 1
            if not self._adapters[adapter]:
                del self._adapters[adapter]
