"""Resident memory of this process and its peak. No torch."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from baseboard.kit.procfs import read_counters

_RESET_PEAK: Final = b"5"  # what clear_refs takes to lower VmHWM to VmRSS: proc_pid_clear_refs(5)


@dataclass(frozen=True, slots=True)
class ResidentSize:
    """Bytes; ``peak >= current``. Both 0 where the system does not tell."""

    current: int
    peak: int  #: since the process started or the meter's peak was last reset


class ProcessMemory:
    """Meter of the resident size. Every instance has a peak of its own.

    The kernel's peak (VmHWM) can be lowered only by writing ``/proc/self/clear_refs``, which sandboxes forbid, and
    other meters may lower it too. So the kernel's peak counts only when it has risen since this meter's reset; until
    then the peak is the highest this meter has seen.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._process: Final = root / "proc/self"
        self._kernel_peak = 0  #: VmHWM at the last reset
        self._seen = 0  #: highest resident size read since the last reset

    def read(self) -> ResidentSize:
        status = read_counters(self._process / "status")
        current = status.get("VmRSS", 0)
        kernel_peak = status.get("VmHWM", 0)
        self._seen = max(self._seen, current)
        if kernel_peak > self._kernel_peak:
            self._seen = max(self._seen, kernel_peak)
        return ResidentSize(current, self._seen)

    def reset_peak(self) -> None:
        """Start the peak anew at the current size."""
        with suppress(OSError):  # not allowed, or not Linux: then only what this meter sees counts
            descriptor = os.open(self._process / "clear_refs", os.O_WRONLY)
            try:
                os.write(descriptor, _RESET_PEAK)
            finally:
                os.close(descriptor)
        status = read_counters(self._process / "status")
        self._seen = status.get("VmRSS", 0)
        self._kernel_peak = status.get("VmHWM", 0)
