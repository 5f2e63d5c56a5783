"""How long a step takes on the hardware that is imagined."""

from __future__ import annotations

from dataclasses import dataclass

from baseboard.contract.plan import StepPlan
from baseboard.scheduler.preemption import Costs


@dataclass(frozen=True, slots=True)
class StepCosts:
    """A linear model: measure its numbers once on the chip in question.

    ``seconds(step) = decode_step + prefill_token * (tokens of chunks) + decode_row * (rows that decode)
    + swapped_byte * bytes moved``; ``decode_step`` is paid by every step, for it reads the weights once.
    """

    decode_step: float = 0.02
    prefill_token: float = 1e-4
    decode_row: float = 0.0
    swapped_byte: float = 1 / 25e9
    block_nbytes: int = 0

    def seconds(self, plan: StepPlan) -> float:
        decodes = sum(1 for count in plan.counts if count == 1)
        chunks = plan.num_tokens - decodes
        moved = sum(len(op.pairs) for op in plan.kv_ops) * self.block_nbytes
        return self.decode_step + self.prefill_token * chunks + self.decode_row * decodes + self.swapped_byte * moved

    def costs(self) -> Costs:
        """For the choice between swapping and computing again."""
        return Costs(self.prefill_token, self.swapped_byte * self.block_nbytes)
