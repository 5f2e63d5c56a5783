"""Computes operators while a backend is open: the emulator as an instrument, for processes that are not ours."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack
from functools import cache
from typing import Any, Final

from baseboard.contract import Capabilities, hookimpl
from baseboard_ascend_standin.environment import SOC


class StandInInstrument:
    """Switched on by the first hook that the core calls when a backend is opened, off when it has been closed.

    Torch keeps the switch for each thread: hooks and kernels must be called in the thread that opened the backend.
    """

    def __init__(self) -> None:
        self._on: Final = ExitStack()

    @hookimpl(wrapper=True)
    def capabilities(self) -> Generator[None, Capabilities, Capabilities]:
        emulator = _emulator()
        if emulator is not None:
            self._on.enter_context(emulator)
        return (yield)

    @hookimpl(wrapper=True)
    def close(self) -> Generator[None, None, None]:
        yield
        self._on.close()


@cache
def _emulator() -> Any:
    """One for the process, because the library calls one back; None where nobody opened an NPU."""
    import torch

    if not hasattr(torch, "npu"):
        return None
    from baseboard_ascend_standin.emulator.calls import Chip
    from baseboard_ascend_standin.emulator.dispatch import EmulatedNpu
    from baseboard_ascend_standin.library import StandIn

    return EmulatedNpu(StandIn.found(), Chip(os.environ.get(SOC) or Chip().soc))
