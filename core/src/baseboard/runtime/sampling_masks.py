"""Bias, allowed tokens and early stops: what a request says about single tokens before anything is sampled."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from baseboard.runtime.sampling_cells import Cells
from baseboard.runtime.sampling_rows import SamplingRow


def apply_bias(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    """Add the logit biases of ``rows`` to ``logits`` ``[R, V]`` in place."""
    using = [(i, row.bias) for i, row in enumerate(rows) if row.bias is not None]
    if not using:
        return
    cells = Cells.of(logits, [i for i, _ in using], [bias.ids for _, bias in using])
    logits[cells.rows, cells.tokens] += cells.column([bias.values for _, bias in using])


def mask_not_allowed(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    """Set to minus infinity what a row does not allow, where it names what it allows."""
    using = [(i, row.allowed) for i, row in enumerate(rows) if row.allowed is not None]
    if not using:
        return
    indices = [i for i, _ in using]
    cells = Cells.of(logits, indices, [allowed for _, allowed in using])
    allowed = logits[cells.rows, cells.tokens]
    logits[torch.tensor(indices, device=logits.device)] = -torch.inf
    logits[cells.rows, cells.tokens] = allowed


def mask_early_stops(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    """Set to minus infinity the stop tokens of rows that have not generated ``min_tokens`` yet."""
    using = [(i, row.forbidden_early) for i, row in enumerate(rows) if row.too_early_to_stop]
    if not using:
        return
    cells = Cells.of(logits, [i for i, _ in using], [stops for _, stops in using])
    logits[cells.rows, cells.tokens] = -torch.inf
