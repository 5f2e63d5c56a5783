"""The operator ``sample``: a token for each row of logits, all on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from baseboard_cuda.faults import device_faults
from baseboard_cuda.kernels import sampling as kernels
from baseboard_cuda.launching import on_grid

_TILE: Final = 2048
_WARPS: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """How each row is drawn, ``[S]`` each, on the device. The order is temperature, top-k, top-p of that, min-p."""

    temperature: torch.Tensor  #: float32; 0 takes the most likely token
    top_k: torch.Tensor  #: int32; 0 keeps all
    top_p: torch.Tensor  #: float32; 1 keeps all
    min_p: torch.Tensor  #: float32, of the most likely token's weight; 0 keeps all
    uniform: torch.Tensor  #: float64 in [0, 1): the random number


def sample(logits: torch.Tensor, how: Draws) -> torch.Tensor:
    """Tokens int64 ``[S]`` for ``logits`` ``[S, V]``; nothing is waited for.

    What is kept and drawn is what :class:`baseboard.contract.SamplingParams` says; of equal logits the lower token
    comes first. A row without a finite logit, or with one that is no number, gives -1: the caller sees it when it
    reads the tokens.
    """
    rows, size = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return tokens
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    with device_faults("sample"):
        on_grid(kernels.sample, (rows,), _WARPS)(
            tokens,
            logits,
            how.temperature,
            how.top_k,
            how.top_p,
            how.min_p,
            how.uniform,
            logits.stride(0),
            size,
            TILE=_TILE,
        )
    return tokens
