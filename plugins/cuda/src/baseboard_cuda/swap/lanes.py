"""In which order transfers run: each direction has a stream of its own, and they meet only where they must.

::

    compute     ... write KV ... | e0                     wait_on_stream: waits for both lanes' events
    to host                      `-wait e0- copy - event
    to device                    `-wait e0- copy - event      and waits for the other lane where blocks are shared

To whoever looks on, transfers are first in, first out: one is done when all that were started before it are.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import BackendFault
from baseboard_cuda.faults import device_faults
from baseboard_cuda.swap.driver import CopyTable, SourceAccess, submit
from baseboard_cuda.swap.plan import Descriptors


class Event(Protocol):
    """As ``torch.cuda.Event``."""

    def query(self) -> bool: ...
    def synchronize(self) -> None: ...


class Stream(Protocol):
    """As ``torch.cuda.Stream``."""

    @property
    def cuda_stream(self) -> int: ...
    def wait_event(self, event: Any) -> None: ...
    def record_event(self) -> Any: ...


class Streams(Protocol):
    """Where streams come from."""

    def new(self) -> Stream: ...
    def current(self) -> Stream: ...


class Direction(Enum):
    TO_HOST = "to host"
    TO_DEVICE = "to device"

    @property
    def other(self) -> Direction:
        return Direction.TO_DEVICE if self is Direction.TO_HOST else Direction.TO_HOST


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """One transfer to be started. Blocks are named by their addresses in the first plane, which no two share."""

    copies: Descriptors
    direction: Direction
    source_blocks: NDArray[np.uint64]
    destination_blocks: NDArray[np.uint64]
    pinned: bool  #: whether the host's side is
    keep: object  #: what must not be freed while it is under way

    def meets(self, other: Order) -> bool:
        """Whether both touch a block and at least one writes it."""
        return (
            _share(self.source_blocks, other.destination_blocks)
            or _share(self.destination_blocks, other.source_blocks)
            or _share(self.destination_blocks, other.destination_blocks)
        )


@dataclass(frozen=True, slots=True)
class _UnderWay:
    order: Order
    event: Event


class LaneTransfer:
    """Implements :class:`baseboard.contract.Transfer`."""

    def __init__(self, nbytes: int, events: tuple[Event, ...], streams: Streams) -> None:
        self._nbytes: Final = nbytes
        self._events: Final = events  #: its own, and the other lane's last one before it
        self._streams: Final = streams

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def done(self) -> bool:
        with device_faults("a swap"):
            return all(event.query() for event in self._events)

    def wait(self) -> None:
        with device_faults("a swap"):
            for event in self._events:
                event.synchronize()

    def wait_on_stream(self) -> None:
        stream = self._streams.current()
        with device_faults("a swap"):
            for event in self._events:
                stream.wait_event(event)


class Lanes:
    """Starts transfers. Owner: the backend, which is used by one thread at a time."""

    def __init__(self, table: CopyTable, streams: Streams) -> None:
        self._table: Final = table
        self._streams: Final = streams
        self._lanes: Final = {direction: streams.new() for direction in Direction}
        self._under_way: Final[dict[Direction, list[_UnderWay]]] = {direction: [] for direction in Direction}

    def start(self, order: Order) -> LaneTransfer:
        """Enqueue ``order`` and return at once. Raises ``BackendFault`` when the driver refuses it."""
        self._forget_finished()
        lane = self._lanes[order.direction]
        others = self._under_way[order.direction.other]
        with device_faults("a swap"):
            # What was computed so far has to be there before it is read, and to be read before it is overwritten.
            lane.wait_event(self._streams.current().record_event())
            met = [other for other in others if order.meets(other.order)]
            for other in met:
                lane.wait_event(other.event)
            submit(self._table, order.copies, _access(order, met), lane.cuda_stream)
            event = lane.record_event()
        self._under_way[order.direction].append(_UnderWay(order, event))
        last_of_other = [other.event for other in others[-1:]]
        return LaneTransfer(order.copies.total_nbytes, (event, *last_of_other), self._streams)

    def close(self) -> None:
        """Wait for all transfers, so that their memory can be freed. A device that is lost transfers nothing."""
        with suppress(BackendFault), device_faults("closing"):
            for transfers in self._under_way.values():
                for transfer in transfers:
                    transfer.event.synchronize()
        for transfers in self._under_way.values():
            transfers.clear()

    def _forget_finished(self) -> None:
        with device_faults("a swap"):
            for transfers in self._under_way.values():
                transfers[:] = [transfer for transfer in transfers if not transfer.event.query()]


def _access(order: Order, met: Iterable[object]) -> SourceAccess:
    # From the device: what is read may still be computed. From the host: what is read may still be arriving, and
    # memory that is not pinned is copied to a staging buffer first.
    finished = order.direction is Direction.TO_DEVICE and order.pinned and not list(met)
    return SourceAccess.ANY if finished else SourceAccess.STREAM


def _share(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> bool:
    return bool(np.isin(a, b).any())
