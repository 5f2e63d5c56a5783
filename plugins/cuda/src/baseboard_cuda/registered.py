"""Host memory for swap pools, made reachable for the GPU page by page as it is.

torch's own pinned allocator rounds every request up to a power of two: a pool of 100 GB would take 128.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from baseboard.kit.pool import DeviceMemory, out_of_memory_translated


class Registry(Protocol):
    """Pins and unpins host memory. The numbers returned are CUDA's errors, 0 for none."""

    def register(self, address: int, nbytes: int) -> int: ...
    def unregister(self, address: int) -> int: ...


class CudaRegistry:
    """``cudaHostRegister``, by torch's own binding: it makes the context current in whatever thread calls."""

    def register(self, address: int, nbytes: int) -> int:
        portable = 1
        return int(_runtime().cudaHostRegister(address, nbytes, portable))

    def unregister(self, address: int) -> int:
        return int(_runtime().cudaHostUnregister(address))


def _runtime() -> Any:
    return torch.cuda.cudart()


@dataclass(frozen=True, slots=True)
class RegisteredMemory:
    """Implements :class:`baseboard.kit.pool.Memory`. What it makes is unpinned when the last tensor on it is gone."""

    registry: Registry

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Raises ``torch.OutOfMemoryError`` also where the system refuses to pin: it never gives pageable memory."""
        nbytes = math.prod(shape) * dtype.itemsize
        self.require(nbytes)
        with out_of_memory_translated():
            try:
                pages = np.frombuffer(mmap.mmap(-1, max(1, nbytes)), np.uint8, nbytes)
            except OSError as error:
                raise MemoryError(f"no {nbytes:,} bytes of host memory: {error}") from error
        code = self.registry.register(pages.ctypes.data, nbytes)
        if code:
            raise torch.OutOfMemoryError(
                f"CUDA refused to pin {nbytes:,} bytes of host memory (error {code}): "
                f"lower num_host_blocks, or raise the limit on locked memory (ulimit -l)"
            )
        # The array dies with the last tensor that was made of it, and before its pages are unmapped.
        weakref.finalize(pages, self.registry.unregister, pages.ctypes.data).atexit = False
        return torch.from_numpy(pages).view(dtype).view(tuple(shape))

    def require(self, nbytes: int) -> None:
        DeviceMemory(torch.device("cpu")).require(nbytes)
