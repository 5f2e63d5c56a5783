"""What the backend runs on: a GPU, or the interpreter on the CPU. The rest of the backend does not know which."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from baseboard.contract import DType
from baseboard.kit.pool import Memory
from baseboard_cuda.engines.choice import Engine
from baseboard_cuda.memory import MemoryMeter
from baseboard_cuda.metadata import Upload
from baseboard_cuda.swap.swapper import Swapper
from baseboard_cuda.tiles import TileTable


@dataclass(frozen=True, slots=True, eq=False)
class Chip:
    """A device, and what goes with it."""

    device: torch.device
    dtypes: tuple[DType, ...]
    tiles: TileTable
    num_processors: int
    communicator: str
    asynchronous: bool  #: swaps run beside the compute
    memory: Memory  #: of the device
    host_pools: Memory  #: swap pools
    host_buffers: Memory  #: index arrays
    upload: Upload
    meter: MemoryMeter
    swapper: Swapper
    engines: tuple[Engine, ...]  #: of attention, beside our own; the best first

    def synchronize(self) -> None:
        """Wait for everything that was enqueued."""
        if self.device.type != "cpu":
            torch.cuda.synchronize(self.device)
