"""The two questions that CANN's library answers without a device being opened."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

LIBRARY: Final = "libascendcl.so"


class DriverMissing(Exception):
    """The library cannot be loaded; the message is the loader's."""


@dataclass(frozen=True, slots=True)
class Driver:
    """What the driver sees."""

    num_devices: int  #: those that ASCEND_RT_VISIBLE_DEVICES lets through
    soc: str  #: of all of them: a machine has one kind


def ask_driver() -> Driver:
    """Load CANN's library and ask. Makes no context. Raises ``DriverMissing``."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise DriverMissing(str(error)) from error
    count = ctypes.c_uint32(0)
    failed = library.aclrtGetDeviceCount(ctypes.byref(count))
    library.aclrtGetSocName.restype = ctypes.c_char_p
    name = library.aclrtGetSocName()
    return Driver(0 if failed else count.value, name.decode() if name else "an NPU that does not tell its name")
