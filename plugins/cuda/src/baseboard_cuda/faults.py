"""Tells a lost device from everything else that goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from baseboard.contract import BackendFault

#: What errors of the device contain; Triton's launcher and older calls of torch have no type for them.
_SIGNS: Final = ("CUDA error", "Triton Error [CUDA]", "CUDA driver error")


@contextmanager
def device_faults(what: str) -> Iterator[None]:
    """Raise ``BackendFault`` where the device failed during ``what``; exhausted memory is no fault."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if not isinstance(error, torch.AcceleratorError) and not any(sign in str(error) for sign in _SIGNS):
            raise
        raise BackendFault(f"the GPU failed during {what}: {error}") from error
