"""Log-probabilities that requests of a simulation asked for, put together from what single steps told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from baseboard.contract.plan import StepPlan, TokenLogprobs
from baseboard.scheduler.commit import Outcome


class LogprobBook:
    """By request id. What a step tells again, after a preemption, takes the place of what was there."""

    def __init__(self) -> None:
        self._sampled: Final[dict[str, list[TokenLogprobs]]] = {}
        self._prompt: Final[dict[str, dict[int, TokenLogprobs]]] = {}

    def take_in(self, plan: StepPlan, outcome: Outcome) -> None:
        told = outcome.result.logprobs
        if not told:
            return
        for row, logprobs in told.items():
            first = plan.starts[row] + 1
            self._prompt.setdefault(plan.ids[row], {}).update(enumerate(logprobs.prompt, first))
        taken: dict[str, int] = {}
        for request, row in zip(outcome.requests, outcome.rows, strict=True):
            if row in told and told[row].sampled:
                # A row of several samples lists one token for each, any other row the tokens of one.
                at = request.spec.sample_index if plan.samples[row] > 1 else taken.setdefault(request.id, 0)
                taken[request.id] = at + 1
                self._sampled.setdefault(request.id, []).append(told[row].sampled[at])

    def sampled(self, request_id: str) -> Sequence[TokenLogprobs]:
        return tuple(self._sampled.get(request_id, ()))

    def prompt(self, request_id: str, num_prompt: int) -> Sequence[TokenLogprobs | None]:
        """Parallel to the prompt; None where nothing was told, as for its first token."""
        found = self._prompt.get(request_id, {})
        return [found.get(at) for at in range(num_prompt)]
