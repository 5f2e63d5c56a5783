"""Single logits of a batch, addressed together: the only way in which the sampler writes by token id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Cells:
    """Places (row, token) in a table of logits ``[R, V]``, in the order of their rows.

    A token id outside the vocabulary has no cell: it can neither fail on the device nor reach into another row.
    """

    rows: torch.Tensor  #: int64 ``[c]``
    tokens: torch.Tensor  #: int64 ``[c]``
    _inside: NDArray[np.bool_]
    _lengths: NDArray[np.int64]

    @classmethod
    def of(cls, logits: torch.Tensor, rows: Sequence[int], tokens: Sequence[NDArray[np.int64]]) -> Cells:
        """The cells of ``tokens[i]`` in row ``rows[i]``, on the device of ``logits``."""
        lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
        flat = np.concatenate(tokens)
        inside = (flat >= 0) & (flat < logits.shape[-1])
        places = np.stack((np.repeat(np.asarray(rows, dtype=np.int64), lengths)[inside], flat[inside]))
        on_device = torch.from_numpy(places).to(logits.device)
        return cls(on_device[0], on_device[1], inside, lengths)

    def column(self, values: Sequence[NDArray[Any]]) -> torch.Tensor:
        """Values given per token, parallel to the ``tokens`` the cells were made of: float32 ``[c]``."""
        flat = np.concatenate(values).astype(np.float32)[self._inside]
        return torch.from_numpy(flat).to(self.rows.device)

    def row_column(self, values: Sequence[float]) -> torch.Tensor:
        """Values given per row, repeated for each of its cells: float32 ``[c]``."""
        flat = np.repeat(np.asarray(values, dtype=np.float32), self._lengths)[self._inside]
        return torch.from_numpy(flat).to(self.rows.device)
