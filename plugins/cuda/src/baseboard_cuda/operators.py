"""The fused operators as the core calls them: new tensors out, arguments untouched, rows may be strided.

====================  ==========================================================  ==================================
name                  call                                                        ``spec``
====================  ==========================================================  ==================================
``rms_norm``          ``(x, weight) -> y``                                        hidden_size, dtype, eps
``add_rms_norm``      ``(x, residual, weight) -> (y, x + residual)``              hidden_size, dtype, eps
``silu_and_mul``      ``(x [..., 2 I]) -> [..., I]``                              dtype
``rotary_embedding``  ``(query, key, positions, cos_sin) -> (query, key)``        rotary_dim, interleaved, dtype
``sample``            ``(logits, how) -> tokens``                                 none
====================  ==========================================================  ==================================

Query and key are ``[T, heads, D]``, ``positions`` int64
``[T]``, ``cos_sin`` ``[positions, rotary_dim]``: cosines of all pairs, then sines. ``sample`` is in
:mod:`baseboard_cuda.sampling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton

from baseboard.contract import OperatorKernel
from baseboard_cuda.faults import device_faults
from baseboard_cuda.kernels import operators as kernels
from baseboard_cuda.launching import on_grid
from baseboard_cuda.sampling import sample

#: The longest row of one program: beyond it the core's version runs.
LONGEST_ROW: Final = 16384
_TILE: Final = 1024


def make_operator(name: str, spec: Mapping[str, Any]) -> OperatorKernel | None:
    """The operator ``name``; None for one that is not known, or whose rows are too long."""
    if spec.get("hidden_size", 0) > LONGEST_ROW:
        return None
    if name == "rms_norm":
        return RmsNorm(spec["eps"])
    if name == "add_rms_norm":
        return AddRmsNorm(spec["eps"])
    if name == "silu_and_mul":
        return silu_and_mul
    if name == "rotary_embedding":
        return RotaryEmbedding(spec["rotary_dim"], spec["interleaved"])
    if name == "sample":
        return sample
    return None


def row_warps(size: int) -> int:
    """Warps for a program that computes a row of ``size``."""
    return 4 if size <= 2048 else 8 if size <= 8192 else 32


@dataclass(frozen=True, slots=True)
class RmsNorm:
    eps: float

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows = _rows(x)
        count, size = rows.shape
        out = rows.new_empty(count, size)
        if count:
            with device_faults("rms_norm"):
                on_grid(kernels.rms_norm, (count,), row_warps(size))(
                    out, rows, weight, rows.stride(0), self.eps, **_row(size)
                )
        return out.view(x.shape)


@dataclass(frozen=True, slots=True)
class AddRmsNorm:
    eps: float

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, others = _rows(x), _rows(residual)
        count, size = rows.shape
        out, total = rows.new_empty(count, size), rows.new_empty(count, size)
        if count:
            strides = rows.stride(0), others.stride(0)
            with device_faults("add_rms_norm"):
                on_grid(kernels.add_rms_norm, (count,), row_warps(size))(
                    out, total, rows, others, weight, *strides, self.eps, **_row(size)
                )
        return out.view(x.shape), total.view(x.shape)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    rows = _rows(x)
    count, size = rows.shape[0], rows.shape[1] // 2
    out = rows.new_empty(count, size)
    if count:
        with device_faults("silu_and_mul"):
            on_grid(kernels.silu_and_mul, (count, triton.cdiv(size, _TILE)), 4)(
                out, rows, rows.stride(0), SIZE=size, TILE=_TILE
            )
    return out.view(*x.shape[:-1], size)


@dataclass(frozen=True, slots=True)
class RotaryEmbedding:
    rotary_dim: int
    interleaved: bool

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._turned(query, positions, cos_sin), self._turned(key, positions, cos_sin)

    def _turned(self, x: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
        tokens, heads, size = x.shape
        half = self.rotary_dim // 2
        out = x.new_empty(tokens, heads, size)
        if tokens:
            with device_faults("rotary_embedding"):
                on_grid(kernels.rotary_embedding, (tokens, heads), 1)(
                    out,
                    x,
                    positions,
                    cos_sin,
                    *x.stride()[:2],
                    HEAD_SIZE=size,
                    HALF=half,
                    PADDED_HALF=triton.next_power_of_2(half),
                    PADDED_REST=triton.next_power_of_2(max(1, size - 2 * half)),
                    INTERLEAVED=self.interleaved,
                )
        return out


def _rows(x: torch.Tensor) -> torch.Tensor:
    """``x`` as ``[rows, size]`` with a contiguous last dimension: a view where that is possible."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _row(size: int) -> dict[str, int]:
    return {"SIZE": size, "PADDED": triton.next_power_of_2(size)}
