"""Which core each worker runs on."""

from __future__ import annotations

import ctypes
import threading
from typing import Final


class WorkerBinding:
    """Binds OpenMP workers to cores, one to each.

    An OpenMP runtime keeps workers for every thread that starts a parallel region. So those of a thread are bound when
    it prepares its first step, and again when it asks for another number of them.
    """

    def __init__(self, library: ctypes.CDLL, cores: tuple[int, ...]) -> None:
        """``cores``: logical CPUs, the first left to the thread that steps, which stays free; empty: bind nothing."""
        self._library: Final = library
        self._cores: Final = cores
        self._bound: Final[dict[int, int]] = {}  # size of the team that was bound, of each thread that steps

    def bind(self, threads: int) -> None:
        """Bind the calling thread's team of ``threads``, unless that has been done."""
        count = min(threads, len(self._cores))
        stepping = threading.get_ident()
        if count < 2 or self._bound.get(stepping) == count:
            return
        self._library.bb_bind_workers((ctypes.c_int32 * count)(*self._cores[:count]), count)
        self._bound[stepping] = count
