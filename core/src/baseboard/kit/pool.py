"""Zeroed memory for KV pools, and one error for all devices when it does not suffice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch

from baseboard.kit.host_memory import read_host_memory

_ADDRESSABLE: Final = 2**62  # torch counts bytes in a signed 64-bit number; well below, its own messages are clear


class Memory(Protocol):
    """A place where tensors are made."""

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A zeroed tensor. Raises ``torch.OutOfMemoryError`` when it does not fit."""
        ...

    def require(self, nbytes: int) -> None:
        """Raise ``torch.OutOfMemoryError`` when ``nbytes`` could not fit even if nothing else were there."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a torch device; ``DeviceMemory(torch.device("cpu"))`` is ordinary, pageable host memory."""

    device: torch.device

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        nbytes = _nbytes(shape, dtype)
        self.require(nbytes)
        with out_of_memory_translated():
            if self.device.type == "cpu":
                # NumPy's zeros are the system's own zero pages and take memory only when written; torch's are written
                # at once, so that a pool as large as the machine would be paid for by whoever runs one prompt.
                return torch.from_numpy(np.zeros(nbytes, np.uint8)).view(dtype).view(tuple(shape))
            return torch.zeros(tuple(shape), dtype=dtype, device=self.device)

    def require(self, nbytes: int) -> None:
        if self.device.type == "cpu":
            _require_host(nbytes)
        elif nbytes >= _ADDRESSABLE:
            raise torch.OutOfMemoryError(f"{nbytes:,} bytes are more than any device can address")


@dataclass(frozen=True, slots=True)
class PinnedMemory:
    """Host memory that the accelerator in use reaches by DMA."""

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Also raises ``torch.OutOfMemoryError`` when the driver refuses to pin so much."""
        nbytes = _nbytes(shape, dtype)
        self.require(nbytes)
        with out_of_memory_translated():
            made = torch.empty(tuple(shape), dtype=dtype, pin_memory=True)
        # Not every device's allocator looks at the driver's answer: some give a tensor at address 0 when it was no.
        if nbytes and not made.data_ptr():
            raise torch.OutOfMemoryError(
                f"the driver refused to pin {nbytes:,} bytes of host memory: lower the size of the host pool, or raise "
                f"the limit of locked memory (ulimit -l)"
            )
        return made.zero_()

    def require(self, nbytes: int) -> None:
        _require_host(nbytes)


def allocate_planes(memory: Memory, num_blocks: int, plane_nbytes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Zeroed uint8 planes ``[num_blocks, nbytes]``, one for each entry of ``plane_nbytes``.

    ``ValueError`` when there is no block; ``torch.OutOfMemoryError`` when all planes together do not fit.
    """
    if num_blocks < 1:
        raise ValueError(f"num_blocks={num_blocks} is not allowed: a pool has at least the null block")
    memory.require(num_blocks * sum(plane_nbytes))
    return tuple(memory.zeros((num_blocks, nbytes), torch.uint8) for nbytes in plane_nbytes)


@contextmanager
def out_of_memory_translated() -> Iterator[None]:
    """Raise ``torch.OutOfMemoryError`` where host allocators raise ``MemoryError`` or a plain ``RuntimeError``."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except MemoryError as error:
        raise torch.OutOfMemoryError(str(error)) from error
    except RuntimeError as error:
        # The host allocator has no error type of its own: its words are all there is to go by.
        if "DefaultCPUAllocator" not in str(error) and "alloc_cpu.cpp" not in str(error):
            raise
        raise torch.OutOfMemoryError(str(error)) from error


def _require_host(nbytes: int) -> None:
    # Linux hands out address space without memory behind it and kills the process when it is used.
    total = read_host_memory().total
    if nbytes > (total or _ADDRESSABLE):
        raise torch.OutOfMemoryError(
            f"{nbytes:,} bytes do not fit: this process may use {total:,} bytes of host memory in all"
        )


def _nbytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize
