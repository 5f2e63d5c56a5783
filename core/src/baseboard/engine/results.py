"""What callers get back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from baseboard.contract import RankedToken, TokenLogprobs
from baseboard.engine.metrics import RequestMetrics
from baseboard.request.request import ANYBODY, Caller
from baseboard.request.status import FinishReason

#: One position's candidates by token id: the chosen one and the most likely ones.
LogprobsAt: TypeAlias = Mapping[int, RankedToken]


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One sample. ``token_ids`` includes the token that ended it; ``text`` does not."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    stop_reason: int | str | None  #: the stop token id or stop text that ended it
    logprobs: list[LogprobsAt] | None  #: parallel to ``token_ids``, where asked for
    cumulative_logprob: float | None  #: sum over the sampled tokens, where asked for
    error: str | None = None  #: why ``finish_reason`` is ``"error"``
    num_nans: int = 0  #: values among the logits it was sampled from that were no numbers


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """One prompt and its samples."""

    request_id: str
    prompt: str | None  #: None where token ids were given
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int  #: prompt tokens found in the prefix cache
    num_preemptions: int  #: over all samples
    prompt_logprobs: list[LogprobsAt | None] | None  #: parallel to the prompt, the first None
    metrics: RequestMetrics | None = None  #: None where the engine keeps no log
    caller: Caller = ANYBODY  #: as it came with the request
    kv_transfer: Mapping[str, Any] | None = None  #: what a prefix source said when the first sample ended


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What a step added to one sample, for streaming."""

    request_id: str
    index: int
    text: str
    finish_reason: FinishReason | None
    error: str | None = None  #: why ``finish_reason`` is ``"error"``
    client: int = 0  #: whose request it is


def by_token(position: TokenLogprobs) -> LogprobsAt:
    """The chosen token first, then the most likely ones."""
    return {token.token_id: token for token in (position.chosen, *position.top)}


def cumulative(positions: Sequence[TokenLogprobs]) -> float:
    return sum(position.chosen.logprob for position in positions)
