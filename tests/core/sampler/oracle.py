"""The sampling chain for one row, written down plainly in float64: no batch, no shortcut."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from baseboard.contract import RowState, SamplingParams
from baseboard.runtime.sampling_rows import SamplingRow


def row(
    prompt: Sequence[int] = (0,),
    outputs: Sequence[int] = (),
    *,
    seed: int = 0,
    sample_index: int = 0,
    stop_ids: Collection[int] = (),
    **params,
) -> SamplingRow:
    tokens = (*prompt, *outputs)
    state = RowState("r", tokens, len(prompt), SamplingParams(max_tokens=None, **params), sample_index, ((),))
    return SamplingRow(state, seed, frozenset(stop_ids))


def edited_logits(logits: Sequence[float], r: SamplingRow) -> np.ndarray:
    """Bias, allowed ids, early stops, penalties."""
    p, x = r.params, np.array(logits, dtype=np.float64)
    tokens, num_prompt = r.state.token_ids, r.state.num_prompt_tokens
    outputs = tokens[num_prompt:]
    for token in range(len(x)):
        x[token] += (p.logit_bias or {}).get(token, 0.0)
        if p.allowed_token_ids is not None and token not in p.allowed_token_ids:
            x[token] = -np.inf
        if len(outputs) < p.min_tokens and token in r.stop_ids:
            x[token] = -np.inf
        if token in tokens:
            x[token] = x[token] / p.repetition_penalty if x[token] > 0 else x[token] * p.repetition_penalty
        if token in outputs:
            x[token] -= outputs.count(token) * p.frequency_penalty + p.presence_penalty
    return x


def distribution(logits: Sequence[float], r: SamplingRow) -> np.ndarray:
    """The probabilities of the one draw that follows the chain."""
    p, x = r.params, edited_logits(logits, r)
    if p.temperature == 0:
        return np.eye(len(x))[int(np.argmax(x))]
    weights = np.exp((x - x.max()) / p.temperature)
    order = sorted(range(len(x)), key=lambda token: (-x[token], token))
    if p.top_k:
        order = order[: p.top_k]
    total = sum(weights[token] for token in order)
    kept, mass = [], 0.0
    for token in order:
        if mass >= p.top_p and p.top_p < 1:
            break
        kept.append(token)
        mass += weights[token] / total
    kept = [token for token in kept if weights[token] >= p.min_p * weights[order[0]]]
    result = np.zeros(len(x))
    result[kept] = weights[kept]
    return result / result.sum()


def margin(logits: Sequence[float], r: SamplingRow) -> float:
    """How far the row is from a case in which rounding decides what top-p or min-p keeps."""
    p, x = r.params, edited_logits(logits, r)
    weights = np.exp((x - x.max()) / p.temperature)
    largest = np.sort(weights)[::-1][: p.top_k or None]
    to_top_p = np.abs(np.cumsum(largest / largest.sum()) - p.top_p)
    to_min_p = np.abs(weights - p.min_p)
    gaps = [g.min() for g, used in ((to_top_p, p.top_p < 1), (to_min_p, p.min_p > 0)) if used]
    return float(min(gaps, default=1.0))
