"""What the sampler keeps of a request between steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import RowState, SamplingParams


def _ids(tokens: Collection[int]) -> NDArray[np.int64]:
    return np.fromiter(tokens, dtype=np.int64, count=len(tokens))


class TokenCounts:
    """How often each token was generated; tokens of the prompt are known with a count of 0.

    Kept as two parallel arrays that grow by doubling, so that a step reads them without a loop over tokens.
    """

    __slots__ = ("_counts", "_ids", "_places")

    def __init__(self, known: Collection[int]) -> None:
        self._ids = np.unique(_ids(known))
        self._counts = np.zeros(len(self._ids), dtype=np.int64)
        self._places = {token: place for place, token in enumerate(self._ids.tolist())}

    @property
    def ids(self) -> NDArray[np.int64]:
        """``[n]``, each known token once."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.int64]:
        """``[n]``, parallel to ``ids``."""
        return self._counts[: len(self._places)]

    def add(self, token: int) -> None:
        """Count one generated token."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._grow()
        self._ids[place] = token
        self._counts[place] += 1

    def _grow(self) -> None:
        more = np.zeros(max(16, len(self._ids)), dtype=np.int64)
        self._ids = np.concatenate((self._ids, more))
        self._counts = np.concatenate((self._counts, more))


@dataclass(frozen=True, slots=True)
class TokenBias:
    """What is added to the logits of some tokens."""

    ids: NDArray[np.int64]  #: ``[n]``, each token once
    values: NDArray[np.float32]  #: ``[n]``


@dataclass(slots=True)
class SamplingRow:
    """The sampling state of one running sequence. The executor makes it when the row enters and appends to it.

    ``seed`` is the request's seed, or the one that the engine gave it. ``stop_ids`` are the tokens, end of text
    included, that may not come before ``min_tokens`` others. A row made anew from the tokens so far (after a
    preemption) samples as the old one would have.
    """

    state: RowState
    seed: int
    stop_ids: frozenset[int] = frozenset()
    num_outputs: int = field(init=False)  #: the position, among the outputs, of the token to be sampled next
    bias: TokenBias | None = field(init=False, default=None)
    allowed: NDArray[np.int64] | None = field(init=False, default=None)
    forbidden_early: NDArray[np.int64] = field(init=False)
    penalised: TokenCounts | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        outputs = self.state.token_ids[self.state.num_prompt_tokens :]
        self.num_outputs = len(outputs)
        self.forbidden_early = _ids(self.stop_ids if self.params.min_tokens else ())
        if self.params.logit_bias:
            values = np.fromiter(self.params.logit_bias.values(), dtype=np.float32)
            self.bias = TokenBias(_ids(self.params.logit_bias.keys()), values)
        if self.params.allowed_token_ids is not None:
            self.allowed = np.unique(_ids(self.params.allowed_token_ids))
        if _uses_penalties(self.params):
            self.penalised = self._count(outputs)

    @property
    def params(self) -> SamplingParams:
        return self.state.params

    @property
    def sample_index(self) -> int:
        return self.state.sample_index

    @property
    def too_early_to_stop(self) -> bool:
        return self.num_outputs < self.params.min_tokens and len(self.forbidden_early) > 0

    @property
    def edits_logits(self) -> bool:
        """Whether the next token is chosen from other logits than the model's."""
        changes = (self.bias, self.allowed, self.penalised)
        return self.too_early_to_stop or any(change is not None for change in changes)

    def append(self, token: int) -> None:
        """The token sampled for this row; the next one is sampled for the position after it."""
        self.num_outputs += 1
        if self.penalised is not None:
            self.penalised.add(token)

    def _count(self, outputs: Sequence[int]) -> TokenCounts:
        # Only the repetition penalty looks at the prompt; it may be long, so the others do without.
        repetition = self.params.repetition_penalty != 1
        counts = TokenCounts(self.state.token_ids[: self.state.num_prompt_tokens] if repetition else ())
        for token in outputs:
            counts.add(token)
        return counts


def _uses_penalties(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
