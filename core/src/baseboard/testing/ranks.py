"""Simulated KV memory spread over ranks that share one block table: context parallelism."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from baseboard.contract.plan import BlockPair, KVOpKind
from baseboard.testing.memory import SimulatedMemory
from baseboard.testing.model import Slot


class RankedMemory(SimulatedMemory):
    """``num_ranks`` memories of which each holds every ``num_ranks``-th token of every block.

    A block id means the same block on all ranks, so whatever a plan does to blocks is done by each::

        B = 2, 3 ranks, block 5:     rank 0  [t0 t3]     rank 1  [t1 t4]     rank 2  [t2 t5]
    """

    def __init__(self, ranks: Sequence[SimulatedMemory]) -> None:
        first = ranks[0]
        super().__init__(0, 0, first.block_size * len(ranks))
        self.ranks: Final = tuple(ranks)

    def begin_step(self) -> None:
        for rank in self.ranks:
            rank.begin_step()

    def move(self, kind: KVOpKind, pairs: Sequence[BlockPair]) -> None:
        for rank in self.ranks:
            rank.move(kind, pairs)

    def write(self, block: int, offset: int, content: Slot) -> None:
        self.ranks[offset % len(self.ranks)].write(block, offset // len(self.ranks), content)

    def wait_for(self, blocks: Iterable[int]) -> None:
        waited = tuple(blocks)
        for rank in self.ranks:
            rank.wait_for(waited)

    def poison(self, blocks: Iterable[int]) -> None:
        poisoned = tuple(blocks)
        for rank in self.ranks:
            rank.poison(poisoned)

    def device_block(self, block: int) -> list[Slot]:
        return _interleaved([rank.device_block(block) for rank in self.ranks])

    def host_block(self, block: int) -> list[Slot]:
        return _interleaved([rank.host_block(block) for rank in self.ranks])


def _interleaved(parts: Sequence[Sequence[Slot]]) -> list[Slot]:
    return [slot for slots in zip(*parts, strict=True) for slot in slots]
