"""What computing and moving cost on this machine, measured while it runs."""

from __future__ import annotations

from typing import Final

from baseboard.scheduler.preemption import Costs

#: How much a new measurement counts against all before it.
_WEIGHT: Final = 0.1


class MeasuredCosts:
    """Seconds to compute one token, from steps that were mostly prefill; seconds to move one block, from a trial.

    Before anything is measured, recomputing is taken to be the dearer: it costs the machine's whole attention.
    """

    def __init__(self, seconds_per_block: float) -> None:
        self._seconds_per_block: Final = seconds_per_block
        self._seconds_per_token: float | None = None

    def observe(self, seconds: float, num_tokens: int) -> None:
        """A step took ``seconds`` and computed ``num_tokens`` tokens."""
        if num_tokens:
            each = seconds / num_tokens
            old = self._seconds_per_token
            self._seconds_per_token = each if old is None else old + _WEIGHT * (each - old)

    def costs(self) -> Costs:
        each = self._seconds_per_token
        return Costs(float("inf") if each is None else each, self._seconds_per_block)
