"""Log-probabilities and ranks under the model's own distribution, before any wish of the request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from baseboard.contract import RankedToken, TokenLogprobs
from baseboard.runtime.sampling_filters import keep_largest

#: What a probability of 0 is reported as: JSON has no infinity.
LOWEST_LOGPROB: Final = -9999.0
_ELEMENTS_AT_ONCE: Final = 1 << 24


def token_logprobs(logits: torch.Tensor, tokens: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
    """What row ``i`` of ``logits`` float32 ``[n, V]`` says of ``tokens[i]``, and of its ``num_top[i]`` best tokens.

    Ranks: 1 + the number of tokens with a strictly greater logit, so equal ones share a rank. The best are in
    descending order, equal ones by lower token id; tokens of probability 0 are left out. Logits must not be NaN.
    """
    if not tokens:
        return []
    logprobs = logits.log_softmax(-1).clamp(min=LOWEST_LOGPROB)
    chosen = torch.tensor(tokens, device=logits.device)[:, None]
    ranks = 1 + (logits > logits.gather(-1, chosen)).sum(-1)
    best = _best(logits, min(max(num_top), logits.shape[-1]))
    columns = (
        logprobs.gather(-1, chosen)[:, 0].tolist(),
        ranks.tolist(),
        best.tolist(),
        logprobs.gather(-1, best).tolist(),
        logits.gather(-1, best).tolist(),
    )
    return [
        TokenLogprobs(RankedToken(token, logprob, rank), _top(ids[:k], values, scores))
        for token, k, logprob, rank, ids, values, scores in zip(tokens, num_top, *columns, strict=True)
    ]


def prompt_logprobs(logits: torch.Tensor, next_tokens: Sequence[int], num_top: int) -> tuple[TokenLogprobs, ...]:
    """What each prompt position's logits ``[T, V]`` say of the token that follows it, ``next_tokens[t]``.

    Works through a few positions at a time, so the memory it takes does not grow with the prompt.
    Raises ``FloatingPointError`` naming the first position whose logits hold NaN or infinity.
    """
    step = max(1, _ELEMENTS_AT_ONCE // logits.shape[-1])
    found: list[TokenLogprobs] = []
    for start in range(0, len(next_tokens), step):
        part = logits[start : start + step].float()
        broken = (~part.amax(-1).isfinite()).nonzero().flatten().tolist()
        if broken:
            raise FloatingPointError(f"the model's logits after prompt position {start + broken[0]} are not finite")
        tokens = next_tokens[start : start + step]
        found.extend(token_logprobs(part, tokens, [num_top] * len(tokens)))
    return tuple(found)


def _best(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Ids of the ``k`` largest logits of each row, descending, equal ones by lower id: int64 ``[n, k]``."""
    if k == 0:
        return torch.empty(len(logits), 0, dtype=torch.int64, device=logits.device)
    last = logits.topk(k, -1).values[:, -1:]
    keep = keep_largest(logits, torch.full_like(last, k, dtype=torch.int64), last)
    ascending = keep.nonzero()[:, 1].reshape(len(logits), k)
    order = logits.gather(-1, ascending).sort(dim=-1, descending=True, stable=True).indices
    return ascending.gather(-1, order)


def _top(ids: Sequence[int], logprobs: Sequence[float], scores: Sequence[float]) -> tuple[RankedToken, ...]:
    top: list[RankedToken] = []
    for place, token in enumerate(ids):
        if scores[place] == -torch.inf:
            break
        tied = place > 0 and scores[place] == scores[place - 1]
        top.append(RankedToken(token, logprobs[place], top[-1].rank if tied else place + 1))
    return tuple(top)
