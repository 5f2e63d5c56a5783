"""From logits to tokens: one call a step, for all rows that end a chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import TokenLogprobs
from baseboard.runtime.logprobs import token_logprobs
from baseboard.runtime.penalties import apply_penalties
from baseboard.runtime.sampling_draw import pick, uniforms
from baseboard.runtime.sampling_filters import kept_weights
from baseboard.runtime.sampling_masks import apply_bias, mask_early_stops, mask_not_allowed
from baseboard.runtime.sampling_rows import SamplingRow


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """What was sampled. Row ``i`` is row ``i`` of the logits."""

    token_ids: tuple[int | None, ...]  #: None where the row failed
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict[int, TokenLogprobs])  #: where asked for
    failed: Mapping[int, str] = field(default_factory=dict[int, str])  #: rows that have no token, and why
    num_nans: Mapping[int, int] = field(default_factory=dict[int, int])
    #: how many of a row's logits are no numbers, where there are any; looked for only where the largest is none


class Sampler:
    """The chain of ``SamplingParams``, over a batch. Holds no state: what it must know of a row is in the row.

    A row's token depends on its logits, its request and its position only: not on other rows, nor on their order.
    A batch of greedy rows without extras costs one pass over the logits; every feature costs only when it is used.
    """

    def sample(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> SampledTokens:
        """One token for each row. ``logits``: ``[R, V]``, any device, not changed. The rows are not advanced.

        A row whose logits are broken, or leave no token to sample, fails by itself. The device is waited for once,
        and again only when log-probabilities are asked for. Raises ``ValueError`` when the rows don't fit the logits.
        """
        if logits.ndim != 2 or len(logits) != len(rows):
            raise ValueError(f"logits of shape {tuple(logits.shape)} do not fit {len(rows)} rows: expected [rows, V]")
        with torch.inference_mode():
            logits = logits.float()
            choice = _choose(logits, rows)
            return _report(logits, rows, choice)


@dataclass(frozen=True, slots=True)
class _Choice:
    """On the host, ``[R]`` each."""

    tokens: NDArray[np.float64]
    raw_peaks: NDArray[np.float64]  #: the largest of the model's logits: NaN when one of them is
    peaks: NDArray[np.float64]  #: the largest logit after the request's changes


def _choose(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> _Choice:
    raw_peaks, tokens = logits.max(-1)
    peaks, scores = raw_peaks, logits
    if any(row.edits_logits for row in rows):
        scores = edited_logits(logits, rows)
        peaks, tokens = scores.max(-1)
    random = [i for i, row in enumerate(rows) if not row.params.greedy]
    if random:
        where = torch.tensor(random, device=logits.device)
        drawing = [rows[i] for i in random]
        weights = kept_weights(scores[where], [row.params for row in drawing])
        tokens[where] = pick(weights, uniforms(drawing))
    # One transfer for all; float64 holds every token id exactly.
    return _Choice(*torch.stack((tokens.double(), raw_peaks.double(), peaks.double())).cpu().numpy())


def edited_logits(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """A copy of the logits ``[R, V]`` after bias, allowed ids, early stops and penalties."""
    scores = logits.clone()
    apply_bias(scores, rows)
    mask_not_allowed(scores, rows)
    mask_early_stops(scores, rows)
    apply_penalties(scores, rows)
    return scores


def _report(logits: torch.Tensor, rows: Sequence[SamplingRow], choice: _Choice) -> SampledTokens:
    failed = _failures(choice)
    num_nans = _num_nans(logits, choice)
    tokens = [None if i in failed else int(token) for i, token in enumerate(choice.tokens)]
    asked = {
        i: (token, row.params.logprobs)
        for i, (token, row) in enumerate(zip(tokens, rows, strict=True))
        if token is not None and row.params.logprobs is not None
    }
    if not asked:
        return SampledTokens(tuple(tokens), failed=failed, num_nans=num_nans)
    where = torch.tensor(list(asked), device=logits.device)
    found = token_logprobs(logits[where], [token for token, _ in asked.values()], [k for _, k in asked.values()])
    return SampledTokens(tuple(tokens), dict(zip(asked, found, strict=True)), failed, num_nans)


def _num_nans(logits: torch.Tensor, choice: _Choice) -> dict[int, int]:
    """Costs nothing while all is well: one NaN makes the largest logit one, and that is on the host already."""
    broken = np.flatnonzero(np.isnan(choice.raw_peaks))
    if not len(broken):
        return {}
    counts = logits[torch.from_numpy(broken).to(logits.device)].isnan().sum(-1).tolist()
    return dict(zip(broken.tolist(), counts, strict=True))


def _failures(choice: _Choice) -> dict[int, str]:
    fine = np.isfinite(choice.raw_peaks) & np.isfinite(choice.peaks)
    return {int(i): _reason(choice.raw_peaks[i], choice.peaks[i]) for i in np.flatnonzero(~fine)}


def _reason(raw_peak: float, peak: float) -> str:
    if np.isnan(raw_peak):
        return "the model's logits contain NaN"
    if np.isposinf(raw_peak) or np.isposinf(peak):
        return "the logits contain infinity"
    if np.isneginf(raw_peak):
        return "the model gave every token the logit -inf"
    return "no token is left to sample: allowed_token_ids, min_tokens and the model's own masks exclude all"
