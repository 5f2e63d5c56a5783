"""Pinned host memory, and the way from host arrays to the device that never waits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.kit.pool import PinnedMemory
from baseboard_ascend_npu.device_module import npu
from baseboard_ascend_npu.faults import device_faults


@dataclass(frozen=True, slots=True)
class PinnedHost:
    """A :class:`baseboard.kit.pool.Memory` of pinned host memory."""

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Raises ``torch.OutOfMemoryError`` when the host has no such memory, or the driver will not pin it."""
        self.require(math.prod(shape) * dtype.itemsize)
        return _pinned(shape, dtype).zero_()

    def require(self, nbytes: int) -> None:
        PinnedMemory().require(nbytes)


@dataclass(frozen=True, slots=True)
class Upload:
    """Copies host arrays to ``device`` on the current stream, through pinned memory of its own.

    The caller may rewrite the arrays at once. The pinned copy belongs to torch's host allocator, which gives it to
    nobody else before the device has read it.
    """

    device: torch.device

    def __call__(self, array: NDArray[Any]) -> torch.Tensor:
        staged = _pinned(array.shape, torch.from_numpy(np.empty(0, array.dtype)).dtype)
        staged.numpy()[...] = array
        return staged.to(self.device, non_blocking=True)

    def together(self, *arrays: NDArray[Any]) -> tuple[torch.Tensor, ...]:
        """All of ``arrays`` as int32 in one copy: each copy costs a call of the driver, whatever its size."""
        flat = self(np.concatenate([array.ravel() for array in arrays]).astype(np.int32))
        parts = flat.split([array.size for array in arrays])
        return tuple(part.view(array.shape) for part, array in zip(parts, arrays, strict=True))


def _pinned(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Not filled. Raises ``torch.OutOfMemoryError`` when the driver won't pin it, ``BackendFault`` when it is lost."""
    made = torch.empty(tuple(shape), dtype=dtype, pin_memory=True)
    if _refused(made):
        # The allocator may hold pinned memory that nobody uses; it also keeps what was refused for whoever asks next.
        del made
        with device_faults():
            npu.synchronize()  # a lost device pins nothing either, and says here that it is lost
        npu.host_empty_cache()
        made = torch.empty(tuple(shape), dtype=dtype, pin_memory=True)
    if _refused(made):
        raise torch.OutOfMemoryError(
            f"the NPU driver refused to pin {made.nbytes:,} bytes of host memory: lower the size of the host pool, or "
            f"raise the limit of locked memory (ulimit -l)"
        )
    return made


def _refused(made: torch.Tensor) -> bool:
    """torch_npu ignores that the driver refused, and gives a tensor at address 0: writing to it kills the process."""
    return made.numel() > 0 and not made.data_ptr()
