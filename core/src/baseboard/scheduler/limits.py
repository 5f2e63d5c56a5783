"""Limit: makes a request's share of a step smaller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from baseboard.request.request import Request


class Limit(Protocol):
    def clip(self, request: Request, want: int, budget: int) -> int:
        """Tokens that ``request`` may compute now: at most ``want``; ``budget`` is what the step has left."""
        ...


@dataclass(frozen=True, slots=True)
class LongPrefill:
    """No request takes more than ``threshold`` tokens of one step."""

    threshold: int

    def clip(self, request: Request, want: int, budget: int) -> int:
        del request, budget
        return min(want, self.threshold)


#: Positions whose logits are computed at once for one request that asks for its prompt's log-probabilities.
PROMPT_LOGPROBS_CHUNK: Final = 256


class PromptLogprobsRows:
    """A prompt whose every position needs logits is computed in small chunks, so that these stay small."""

    def clip(self, request: Request, want: int, budget: int) -> int:
        del budget
        asked = request.spec.params.prompt_logprobs is not None and request.computed < request.num_prompt
        return min(want, PROMPT_LOGPROBS_CHUNK) if asked else want


@dataclass(frozen=True, slots=True)
class AlignedChunks:
    """An unfinished chunk ends at a multiple of ``multiple`` tokens, where that leaves anything of it."""

    multiple: int

    def clip(self, request: Request, want: int, budget: int) -> int:
        start = request.computed
        end = start + min(want, budget)
        if end >= request.target:
            return want
        aligned = end - end % self.multiple
        return aligned - start if aligned > start else want


@dataclass(frozen=True, slots=True)
class WholePrompts:
    """Chunked prefill switched off: all or nothing.

    A preempted request that has grown beyond a whole step's budget is the exception, or it would never come back.
    """

    max_num_batched_tokens: int

    def clip(self, request: Request, want: int, budget: int) -> int:
        del request
        return want if want <= budget or want > self.max_num_batched_tokens else 0
