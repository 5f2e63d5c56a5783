"""Temperature, top-k, top-p and min-p: which tokens a row may sample, and with what weight.

Each filter keeps a *prefix* of the row's tokens sorted by (logit descending, token id ascending)::

    sorted tokens    7    2    9    4    0    ...
    top_k = 4        |------------------|
    top_p                |---------|             within top-k's
    min_p            |----|                      relative to the first

So a filter needs only the sorted values, a count, and the value at which it ends: no permutation of the
vocabulary is ever undone. What one row keeps depends on no other row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from baseboard.contract import SamplingParams

# Nearly always top-p ends within this many tokens; then the whole vocabulary need not be sorted.
_SHORTLIST: Final = 1024


def keep_largest(scores: torch.Tensor, counts: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Where the ``counts[i]`` largest scores of row ``i`` are, equal ones by lower token id: bool ``[n, V]``.

    ``counts`` int64 ``[n, 1]``; ``last`` ``[n, 1]``: the smallest score to be kept.
    """
    above = scores > last
    equal = scores == last
    room = counts - above.sum(-1, keepdim=True)
    return above | (equal & (equal.cumsum(-1, dtype=torch.int32) <= room))


def kept_weights(scores: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """What each token weighs in its row's draw: float64 ``[n, V]``, the most likely 1, filtered ones 0.

    ``scores``: the logits float32 ``[n, V]`` after bias, masks and penalties; not changed. No row is greedy.
    """
    draw = _Draw(scores, params)
    vocabulary = scores.shape[-1]
    by_top_k = [i for i, p in enumerate(params) if 0 < p.top_k < vocabulary]
    if by_top_k:
        draw.cut_at_top_k(by_top_k)
    by_top_p = [i for i, p in enumerate(params) if p.top_p < 1 and not 0 < p.top_k < vocabulary]
    if by_top_p:
        draw.cut_at_top_p(torch.tensor(by_top_p, device=scores.device), min(_SHORTLIST, vocabulary))
    if any(p.min_p for p in params):
        draw.cut_at_min_p()
    return draw.weights


class _Draw:
    """The weights of a batch while they are filtered."""

    def __init__(self, scores: torch.Tensor, params: Sequence[SamplingParams]) -> None:
        self._scores = scores
        self._params = params
        table = torch.tensor([(p.temperature, p.top_p, p.min_p) for p in params], dtype=torch.float64)
        self._temperature, self._top_p, self._min_p = table.to(scores.device).T.unsqueeze(-1)  # [n, 1] each
        self.weights = _weights(scores, scores.amax(-1, keepdim=True), self._temperature)

    def cut_at_top_k(self, rows: Sequence[int]) -> None:
        """Top-k, and top-p of what it leaves."""
        top_ks = [self._params[i].top_k for i in rows]
        top_k = torch.tensor(top_ks, device=self._scores.device)[:, None]
        where = torch.tensor(rows, device=self._scores.device)
        ordered = _largest(self._scores[where], max(top_ks))
        columns = torch.arange(ordered.shape[-1], device=ordered.device)
        reached = self._reached(where, ordered.masked_fill(columns >= top_k, -torch.inf))
        # Rounding must not end a row early that has no top-p.
        top_p = self._top_p[where]
        enough = (top_p * reached[:, -1:]).masked_fill_(top_p >= 1, torch.inf)
        self._keep(where, ordered, _count(reached, enough).minimum(top_k))

    def cut_at_top_p(self, where: torch.Tensor, width: int) -> None:
        """Top-p over the whole vocabulary, looked for among the ``width`` most likely tokens first."""
        enough = self._top_p[where] * self.weights[where].cumsum(-1)[:, -1:]
        ordered = _largest(self._scores[where], width)
        reached = self._reached(where, ordered)
        settled = ~(reached[:, -1] < enough[:, 0])
        if width < self._scores.shape[-1] and not settled.all():
            self.cut_at_top_p(where[~settled], self._scores.shape[-1])
            where, ordered, reached, enough = (t[settled] for t in (where, ordered, reached, enough))
        self._keep(where, ordered, _count(reached, enough))

    def cut_at_min_p(self) -> None:
        self.weights.masked_fill_(self.weights < self._min_p, 0.0)

    def _reached(self, where: torch.Tensor, ordered: torch.Tensor) -> torch.Tensor:
        return _weights(ordered, ordered[:, :1], self._temperature[where]).cumsum(-1)

    def _keep(self, where: torch.Tensor, ordered: torch.Tensor, counts: torch.Tensor) -> None:
        keep = keep_largest(self._scores[where], counts, ordered.gather(-1, counts - 1))
        self.weights[where] = self.weights[where].masked_fill_(~keep, 0.0)


def _largest(scores: torch.Tensor, width: int) -> torch.Tensor:
    """The ``width`` largest scores of each row, descending: ``[n, width]``."""
    if width == scores.shape[-1]:
        return scores.sort(-1, descending=True).values
    return scores.topk(width, -1).values


def _weights(scores: torch.Tensor, peak: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    # The peak goes first: then the quotient has no upper end to overflow, however small the temperature.
    return scores.double().sub_(peak).div_(temperature).exp_()


def _count(reached: torch.Tensor, enough: torch.Tensor) -> torch.Tensor:
    """Length of the shortest prefix whose cumulated weight reaches ``enough``, or of all: int64 ``[n, 1]``."""
    return 1 + (reached[:, :-1] < enough).sum(-1, keepdim=True)
