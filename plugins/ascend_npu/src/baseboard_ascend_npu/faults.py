"""torch_npu's errors as the contract's: it raises RuntimeError for everything, with CANN's number in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from baseboard.contract import BackendFault

#: CANN numbers errors of the device itself 507xxx: heartbeat lost, core or driver failed, task aborted.
_OF_THE_DEVICE: Final = re.compile(r"error code is (507\d{3})")


@contextmanager
def device_faults() -> Iterator[None]:
    """Raise ``BackendFault`` where the device is lost; let every other error pass."""
    try:
        yield
    except RuntimeError as error:
        found = _OF_THE_DEVICE.search(str(error))
        if found is None:
            raise
        raise BackendFault(f"the NPU failed with CANN error {found[1]}, close the backend: {error}") from error
