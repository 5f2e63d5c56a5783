"""Loads the stand-in into this process, and the switches that tests turn."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from baseboard_ascend_standin.build import FIRST, libraries
from baseboard_ascend_standin.environment import folder, same_thread

#: Lost heartbeat: what the driver answers when the chip does not.
LOST_HEARTBEAT: Final = 507010


class StandIn:
    """The loaded library, and its switches."""

    @classmethod
    def load(cls) -> StandIn:
        """Load it into this process. Fails when torch is imported already: torch looks for CANN then."""
        if "torch" in sys.modules:
            raise RuntimeError("the stand-in must be loaded before torch")
        os.environ.update(same_thread())
        # Loaded once by path, a library is found again by its soname: nothing has to be set in the environment.
        first, *_ = [ctypes.CDLL(str(path)) for path in libraries(folder())]
        return cls(first)

    @classmethod
    def found(cls) -> StandIn:
        """The one that this process was started with."""
        return cls(ctypes.CDLL(FIRST))

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library: Final = library
        self._library.standin_set_capacity.argtypes = [ctypes.c_size_t]
        self._library.standin_set_pinned_capacity.argtypes = [ctypes.c_size_t]
        self._library.standin_launch.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        self._library.standin_capturing.argtypes = [ctypes.c_void_p]
        self._library.standin_updating.argtypes = [ctypes.c_void_p]
        self._library.standin_dropped.restype = ctypes.c_uint64
        self._library.standin_calls.argtypes = [ctypes.c_char_p]
        self._library.standin_calls.restype = ctypes.c_long
        self._library.standin_pending.restype = ctypes.c_long
        for name in ("standin_device_used", "standin_pinned_used"):
            getattr(self._library, name).restype = ctypes.c_size_t

    @property
    def library(self) -> ctypes.CDLL:
        return self._library

    def calls(self, name: str) -> int:
        """How often the program called a function of the library that is counted."""
        return self._library.standin_calls(name.encode())

    def pending(self) -> int:
        """Pieces of work that are enqueued and have not run."""
        return self._library.standin_pending()

    def set_capacity(self, nbytes: int) -> None:
        """Let the device have ``nbytes`` in all."""
        self._library.standin_set_capacity(nbytes)

    def device_used(self) -> int:
        return self._library.standin_device_used()

    def set_pinned_capacity(self, nbytes: int) -> None:
        """Let the driver pin ``nbytes`` of host memory in all."""
        self._library.standin_set_pinned_capacity(nbytes)

    def pinned_used(self) -> int:
        return self._library.standin_pinned_used()

    @contextmanager
    def late(self) -> Iterator[None]:
        """Run work only when something waits for it."""
        self._library.standin_set_late(1)
        try:
            yield
        finally:
            self._library.standin_set_late(0)

    @contextmanager
    def without_batched_copies(self) -> Iterator[None]:
        """As a CANN that knows no ``aclrtMemcpyBatchAsync``."""
        self._library.standin_set_batch(0)
        try:
            yield
        finally:
            self._library.standin_set_batch(1)

    def find(self) -> None:
        """Have the device back, after it was lost or hung."""
        self._library.standin_lose(0)

    @contextmanager
    def lost(self, code: int = LOST_HEARTBEAT) -> Iterator[None]:
        """Lose the device: every call fails with ``code``."""
        self._library.standin_lose(code)
        try:
            yield
        finally:
            self.find()
