"""A GPU's streams and copy engine on host memory, as unkind as the real ones may be.

Nothing runs when it is enqueued. Whenever the host waits or asks, operations at the heads of streams run in random
order; the copies of a batch run in random order; sources that may be read at any time are read at once or late.
"""

from __future__ import annotations

import ctypes
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from baseboard_cuda.swap.driver import CopyAttributes, SourceAccess

INVALID_VALUE = 1
INVALID_HANDLE = 400


@dataclass(eq=False)
class FakeEvent:
    gpu: FakeGpuStreams
    fired: bool = False

    def query(self) -> bool:
        self.gpu.run_some()
        return self.fired

    def synchronize(self) -> None:
        while not self.fired:
            assert self.gpu.run_one(), "the host waits for what never happens"


@dataclass(eq=False)
class FakeStream:
    gpu: FakeGpuStreams
    cuda_stream: int
    queue: deque[Callable[[], bool]] = field(default_factory=deque)

    def wait_event(self, event: FakeEvent) -> None:
        self.queue.append(lambda: event.fired)

    def record_event(self) -> FakeEvent:
        event = FakeEvent(self.gpu)
        self.enqueue(lambda: setattr(event, "fired", True))
        return event

    def enqueue(self, action: Callable[[], None]) -> None:
        def run() -> bool:
            action()
            return True

        self.queue.append(run)


class FakeGpuStreams:
    """Implements ``Streams``."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.streams: list[FakeStream] = []
        self.compute = self.new()

    def new(self) -> FakeStream:
        self.streams.append(FakeStream(self, 7000 + len(self.streams)))
        return self.streams[-1]

    def current(self) -> FakeStream:
        return self.compute

    def run_one(self) -> bool:
        """Run the head of some stream; False when none can go on."""
        for stream in self.random.sample(self.streams, len(self.streams)):
            if stream.queue and stream.queue[0]():
                stream.queue.popleft()
                return True
        return False

    def run_some(self) -> None:
        for _ in range(self.random.randrange(3)):
            self.run_one()

    def run_all(self) -> None:
        while self.run_one():
            pass
        assert not any(stream.queue for stream in self.streams)


@dataclass
class FakeCopies:
    """Implements ``CopyTable``; ``bad`` are addresses that the driver does not know."""

    gpu: FakeGpuStreams
    has_batch: bool = True
    bad: frozenset[int] = frozenset()
    says_index: bool = True
    batches: list[tuple[SourceAccess, list[tuple[int, int, int]]]] = field(default_factory=list)
    singles: int = 0

    def memcpy_batch_async(self, *args: Any) -> int:
        destinations, sources, sizes, count, attributes, indexes, num_attributes, failed, stream = args
        if not stream:
            return INVALID_HANDLE
        assert num_attributes == 1
        assert ctypes.c_size_t.from_address(indexes).value == 0
        read = CopyAttributes.from_address(attributes)
        assert (read.flags, read.source_hint.type, read.destination_hint.type) == (0, 0, 0)
        copies = list(zip(*(_numbers(array, count) for array in (destinations, sources, sizes)), strict=True))
        for index, copy in enumerate(copies):
            if self.bad & set(copy[:2]):
                if self.says_index:
                    ctypes.c_size_t.from_address(failed).value = index
                return INVALID_VALUE
        _assert_disjoint(copies)
        access = SourceAccess(read.source_access)
        self.batches.append((access, copies))
        self._enqueue(copies, access, stream)
        return 0

    def memcpy_async(self, destination: int, source: int, nbytes: int, stream: int) -> int:
        if {destination, source} & self.bad:
            return INVALID_VALUE
        self.singles += 1
        self._enqueue([(destination, source, nbytes)], SourceAccess.STREAM, stream)
        return 0

    def error_name(self, code: int) -> str:
        return {INVALID_VALUE: "CUDA_ERROR_INVALID_VALUE", INVALID_HANDLE: "CUDA_ERROR_INVALID_HANDLE"}[code]

    def _enqueue(self, copies: list[tuple[int, int, int]], access: SourceAccess, stream: int) -> None:
        (target,) = [s for s in self.gpu.streams if s.cuda_stream == stream]
        copies = self.gpu.random.sample(copies, len(copies))
        early = {
            copy: ctypes.string_at(copy[1], copy[2])
            for copy in copies
            if access is SourceAccess.ANY and self.gpu.random.random() < 0.7
        }

        def run() -> None:
            for copy in copies:
                data = early.get(copy) or ctypes.string_at(copy[1], copy[2])
                ctypes.memmove(copy[0], data, copy[2])

        target.enqueue(run)


def _numbers(address: int, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).from_address(address))


def _assert_disjoint(copies: list[tuple[int, int, int]]) -> None:
    end = 0
    for begin, nbytes in sorted((destination, nbytes) for destination, _, nbytes in copies):
        assert begin >= end, "two copies of a batch write the same bytes"
        assert nbytes > 0
        end = begin + nbytes
