"""One prompt on its way: its samples, and what is known of the prompt itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from baseboard.contract import TokenLogprobs
from baseboard.engine.metrics import Milestones
from baseboard.engine.results import LogprobsAt, RequestOutput, by_token
from baseboard.engine.sample import Sample
from baseboard.request.request import Request


class Generation:
    """All samples of one prompt; finished when each of them is."""

    def __init__(self, first: Sample, prompt: str | None) -> None:
        self.id: Final = first.request.id
        self.samples: Final = [first]
        self._prompt: Final = prompt
        self._request: Final = first.request
        self._prompt_logprobs: Final[dict[int, TokenLogprobs]] = {}
        self.milestones: Final = Milestones()

    @property
    def finished(self) -> bool:
        # Samples still to be forked count: their prompt is not computed, so the first one is not finished either,
        # unless it was ended from outside, and then there will be none.
        return all(sample.request.finished for sample in self.samples)

    def take_prompt(self, start: int, logprobs: Sequence[TokenLogprobs]) -> None:
        """Log-probabilities of the prompt tokens from position ``start + 1`` on; seen again after a preemption."""
        for offset, position in enumerate(logprobs, start + 1):
            self._prompt_logprobs[offset] = position

    def output(self) -> RequestOutput:
        request: Request = self._request
        return RequestOutput(
            request_id=self.id,
            prompt=self._prompt,
            prompt_token_ids=request.prompt,
            outputs=[sample.output() for sample in sorted(self.samples, key=lambda sample: sample.index)],
            num_cached_tokens=request.num_cached,
            num_preemptions=sum(sample.request.num_preemptions for sample in self.samples),
            prompt_logprobs=self._prompt_positions(),
            metrics=self.milestones.metrics(sum(max(s.request.num_outputs - 1, 0) for s in self.samples)),
            caller=request.spec.caller,
            kv_transfer=request.kv_transfer,
        )

    def _prompt_positions(self) -> list[LogprobsAt | None] | None:
        if self._request.spec.params.prompt_logprobs is None:
            return None
        found = self._prompt_logprobs
        return [by_token(found[at]) if at in found else None for at in range(self._request.num_prompt)]
