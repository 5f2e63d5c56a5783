"""Chance, without a state: a draw depends on the request alone, never on what ran before or beside it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import torch

from baseboard.runtime.sampling_rows import SamplingRow


def uniform(seed: int, sample_index: int, position: int) -> float:
    """The random number in [0, 1) of output ``position`` of one sample of a request: a pure function.

    Equal arguments give equal numbers on every machine; different ones give independent numbers.
    """
    digest = blake2b(f"{seed}/{sample_index}/{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def uniforms(rows: Sequence[SamplingRow]) -> list[float]:
    """The random number of each row's next token."""
    return [uniform(row.seed, row.sample_index, row.num_outputs) for row in rows]


def pick(weights: torch.Tensor, numbers: Sequence[float]) -> torch.Tensor:
    """One token per row by inverse transform: int64 ``[n]``.

    ``weights``: float64 ``[n, V]``, need not sum to 1. The cumulated weights run in the order of the vocabulary.
    A token of weight 0 is never picked.
    """
    reached = weights.cumsum(-1)
    # A parallel scan need not be monotonic to the last bit. Leaving tokens of weight 0 out of the comparison, and
    # taking the largest value as the total, keeps them unpickable whatever the device's order of summation.
    reached = reached.masked_fill_(weights == 0, 0.0)
    total = reached.amax(-1)
    target = torch.tensor(numbers, dtype=torch.float64).to(weights.device) * total
    return (reached > target[:, None]).to(torch.uint8).argmax(-1)
