"""Preemption: how blocks are got back from a running request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from baseboard.contract.plan import BlockPair
from baseboard.kv.manager import KVCacheManager
from baseboard.request.request import Request
from baseboard.request.status import Event


class Preemption(Protocol):
    def preempt(self, request: Request, kv: KVCacheManager) -> tuple[BlockPair, ...]:
        """Take all blocks from a running request and put it into a state that waits.

        Returns the (device, host) pairs to be moved out: none where the tokens will be computed again.
        """
        ...


class Recompute:
    """Drop the blocks; the prefix cache may still have them when the request comes back."""

    def preempt(self, request: Request, kv: KVCacheManager) -> tuple[BlockPair, ...]:
        kv.release(request.id)
        request.drop_kv()
        request.on(Event.PREEMPT)
        return ()


class Swap:
    """Move the blocks to the host pool; where that is full, recompute."""

    def __init__(self) -> None:
        self._otherwise = Recompute()

    def preempt(self, request: Request, kv: KVCacheManager) -> tuple[BlockPair, ...]:
        pairs = kv.swap_out(request.id) if request.computed else None
        if pairs is None:
            return self._otherwise.preempt(request, kv)
        # A token that a step under way was to append may come too late: be ready to sample it again.
        request.computed = min(request.computed, len(request.tokens) - 1)
        request.capacity = 0
        request.settle_at = 0
        request.leave_executor()
        request.on(Event.SWAP_OUT)
        return pairs


@dataclass(frozen=True, slots=True)
class Costs:
    """What the two ways cost on this machine: measured by whoever builds the scheduler."""

    seconds_per_token: float  #: to compute again
    seconds_per_block: float  #: to move one block one way


class CostModel(Protocol):
    def costs(self) -> Costs: ...


class Cheaper:
    """Swap where moving the blocks out and in is estimated to take less time than computing the tokens again."""

    def __init__(self, model: CostModel) -> None:
        self._model = model
        self._recompute = Recompute()
        self._swap = Swap()

    def preempt(self, request: Request, kv: KVCacheManager) -> tuple[BlockPair, ...]:
        costs = self._model.costs()
        move = 2 * len(kv.held(request.id)) * costs.seconds_per_block
        again = request.computed * costs.seconds_per_token
        return (self._swap if move < again else self._recompute).preempt(request, kv)
