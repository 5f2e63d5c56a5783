"""Host pools that are pinned as they are."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

import pytest
import torch

from baseboard_cuda.registered import RegisteredMemory


@dataclass
class FakeRegistry:
    refuses: int = 0
    pinned: dict[int, int] = field(default_factory=dict)

    def register(self, address: int, nbytes: int) -> int:
        if not self.refuses:
            self.pinned[address] = nbytes
        return self.refuses

    def unregister(self, address: int) -> int:
        del self.pinned[address]
        return 0


def test_memory_is_pinned_exactly_and_as_long_as_a_tensor_lives() -> None:
    registry = FakeRegistry()
    pool = RegisteredMemory(registry).zeros((3, 1000), torch.int16)
    assert registry.pinned == {pool.data_ptr(): 6000}
    assert not pool.any()
    plane = pool[1].view(torch.uint8)
    plane.fill_(255)
    del pool
    gc.collect()
    assert len(registry.pinned) == 1
    assert (plane == 255).all()
    del plane
    gc.collect()
    assert registry.pinned == {}


def test_refused_pins_are_exhausted_memory_and_never_pageable_memory() -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"refused to pin 6,000 bytes.*lower num_host_blocks"):
        RegisteredMemory(FakeRegistry(refuses=2)).zeros((3, 1000), torch.int16)


def test_more_than_the_host_has() -> None:
    registry = FakeRegistry()
    with pytest.raises(torch.OutOfMemoryError, match="do not fit"):
        RegisteredMemory(registry).zeros((2**50,), torch.uint8)
    assert registry.pinned == {}
