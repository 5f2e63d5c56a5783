"""The memory of an NPU tensor as a CPU tensor: the stand-in's device memory is host memory."""

from __future__ import annotations

import ctypes

import torch


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the same bytes, valid as long as ``tensor`` lives."""
    if not tensor.numel():
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    storage = tensor.untyped_storage()
    nbytes = storage.nbytes() // tensor.element_size() * tensor.element_size()
    memory = (ctypes.c_char * nbytes).from_address(storage.data_ptr())
    flat = torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype)
    return flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
