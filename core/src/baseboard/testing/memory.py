"""Simulated KV memory: device and host blocks of slots, and transfers that may land late."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from baseboard.contract.plan import BlockPair, KVOpKind
from baseboard.testing.model import POISON, Slot


@dataclass(frozen=True, slots=True)
class _Late:
    """A transfer between device and host that was asked for and has not landed."""

    kind: KVOpKind
    pairs: tuple[BlockPair, ...]
    lands_at: int  # step


class SimulatedMemory:
    """Slots per block. With ``copy_latency`` L a transfer lands L steps later, first in first out, or earlier when
    somebody waits for it; whoever touches a block of a transfer under way has to wait, as the contract says.
    """

    def __init__(self, num_blocks: int, num_host_blocks: int, block_size: int, copy_latency: int = 0) -> None:
        self.block_size: Final = block_size
        self._latency: Final = copy_latency
        self._device: Final = [[POISON] * block_size for _ in range(num_blocks + 1)]
        self._host: Final = [[POISON] * block_size for _ in range(num_host_blocks)]
        self._late: Final[deque[_Late]] = deque()
        self._step = 0

    def begin_step(self) -> None:
        self._step += 1
        while self._late and self._late[0].lands_at <= self._step:
            self._land(self._late.popleft())

    def move(self, kind: KVOpKind, pairs: Sequence[BlockPair]) -> None:
        """Execute one operation of a plan."""
        if kind is KVOpKind.COPY:
            self.wait_for(block for pair in pairs for block in (pair.source, pair.destination))
            self._copy(pairs)
            return
        late = _Late(kind, tuple(pairs), self._step + self._latency)
        self._wait_for_host(pair.destination if kind is KVOpKind.SWAP_OUT else pair.source for pair in pairs)
        self.wait_for(pair.source if kind is KVOpKind.SWAP_OUT else pair.destination for pair in pairs)
        if self._latency:
            self._late.append(late)
        else:
            self._land(late)

    def write(self, block: int, offset: int, content: Slot) -> None:
        self.wait_for((block,))
        self._device[block][offset] = content

    def read(self, blocks: Sequence[int], first: int, end: int) -> list[Slot]:
        """Slots ``first .. end - 1`` along a block table; what lies beyond the table is poison."""
        skipped = first // self.block_size
        needed = blocks[skipped : -(-end // self.block_size)]
        self.wait_for(needed)
        slots: list[Slot] = []
        for block in needed:
            slots.extend(self.device_block(block))
        start = first - skipped * self.block_size
        slots.extend([POISON] * (start + end - first - len(slots)))
        return slots[start : start + end - first]

    def device_block(self, block: int) -> list[Slot]:
        return list(self._device[block])

    def host_block(self, block: int) -> list[Slot]:
        return list(self._host[block])

    def poison(self, blocks: Iterable[int]) -> None:
        """These blocks were given back: whoever reads them from now on is wrong."""
        late = {pair.source for t in self._late if t.kind is KVOpKind.SWAP_OUT for pair in t.pairs}
        for block in blocks:
            if block not in late:
                self._device[block] = [POISON] * self.block_size

    def wait_for(self, blocks: Iterable[int]) -> None:
        """Let every transfer land that touches one of these device blocks, and those before it."""
        if self._late:
            self._wait(set(blocks), on_host=())

    def _wait_for_host(self, blocks: Iterable[int]) -> None:
        if self._late:
            self._wait((), on_host=set(blocks))

    def _wait(self, on_device: Iterable[int], on_host: Iterable[int]) -> None:
        device, host = set(on_device), set(on_host)
        last = 0
        for at, late in enumerate(self._late, 1):
            for pair in late.pairs:
                on = (pair.source, pair.destination)
                device_block, host_block = on if late.kind is KVOpKind.SWAP_OUT else on[::-1]
                if device_block in device or host_block in host:
                    last = at
        for _ in range(last):
            self._land(self._late.popleft())

    def _land(self, late: _Late) -> None:
        for pair in late.pairs:
            if late.kind is KVOpKind.SWAP_OUT:
                self._host[pair.destination] = list(self._device[pair.source])
            else:
                self._device[pair.destination] = list(self._host[pair.source])

    def _copy(self, pairs: Sequence[BlockPair]) -> None:
        sources = {pair.source for pair in pairs}
        destinations = [pair.destination for pair in pairs]
        if len(set(destinations)) != len(destinations) or sources & set(destinations):
            raise ValueError(f"copies that overlap in one batch: {pairs}")
        for pair in pairs:
            self._device[pair.destination] = list(self._device[pair.source])
