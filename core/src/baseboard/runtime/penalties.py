"""Penalties for tokens that occurred before."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from baseboard.runtime.sampling_cells import Cells
from baseboard.runtime.sampling_rows import SamplingRow


def apply_penalties(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    """Write the penalised logits of ``rows`` into ``logits`` ``[R, V]``; rows without penalties are not touched.

    The repetition penalty comes first, for tokens of prompt and output: it divides positive logits and multiplies
    negative ones. Then, for tokens of the output, the frequency penalty times their number and the presence
    penalty once are subtracted.
    """
    using = [(i, row.params, row.penalised) for i, row in enumerate(rows) if row.penalised is not None]
    if not using:
        return
    cells = Cells.of(logits, [i for i, _, _ in using], [counts.ids for _, _, counts in using])
    repetition = cells.row_column([params.repetition_penalty for _, params, _ in using])
    frequency = cells.row_column([params.frequency_penalty for _, params, _ in using])
    presence = cells.row_column([params.presence_penalty for _, params, _ in using])
    counts = cells.column([counts.counts for _, _, counts in using])

    old = logits[cells.rows, cells.tokens]
    new = torch.where(old > 0, old / repetition, old * repetition)
    new = new - frequency * counts - presence * (counts > 0)
    logits[cells.rows, cells.tokens] = new
