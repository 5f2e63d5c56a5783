"""The release of the driver, as its packages and web pages call it. NVML knows it; the CUDA driver does not say."""

from __future__ import annotations

import ctypes
from typing import Any, Final

LIBRARY: Final = "libnvidia-ml.so.1"
_LENGTH: Final = 80


def driver_release() -> str | None:
    """Such as ``"570.86.15"``; None where NVML is missing or refuses."""
    try:
        return read_release(ctypes.CDLL(LIBRARY))
    except OSError:
        return None


def read_release(library: Any) -> str | None:
    """What the library ``library`` says."""
    if library.nvmlInit_v2():
        return None
    try:
        text = ctypes.create_string_buffer(_LENGTH)
        failed = library.nvmlSystemGetDriverVersion(text, _LENGTH)
        return None if failed else text.value.decode(errors="replace")
    finally:
        library.nvmlShutdown()
