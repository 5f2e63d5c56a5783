"""Fused operators: one pass over their rows, new tensors out. Signatures are those of docs/hooks.md."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from baseboard.contract import OperatorKernel
from baseboard.kit.dtypes import dtype_name
from baseboard_cpu_avx512.levels import Level
from baseboard_cpu_avx512.structures import DTYPES, GateArgs, NormArgs, RotaryArgs


@dataclass(frozen=True, slots=True)
class Machine:
    """Where operators run."""

    library: ctypes.CDLL
    level: Level
    threads: Callable[[], int]


def make_operator(machine: Machine, name: str, spec: Mapping[str, Any]) -> OperatorKernel | None:
    """The operator ``name``; None for one that is not here. ``spec`` holds ``eps``, or how a rotary embedding turns."""
    if name == "rms_norm":
        return RmsNorm(machine, spec["eps"]).norm
    if name == "add_rms_norm":
        return RmsNorm(machine, spec["eps"]).add_norm
    if name == "silu_and_mul":
        return SiluAndMul(machine).gate
    if name == "rotary_embedding":
        return RotaryEmbedding(machine, spec.get("interleaved", False)).turn
    return None


class RmsNorm:
    """``x / sqrt(mean(x^2) + eps) * weight``; the normalised row is rounded to the dtype before it is weighed."""

    def __init__(self, machine: Machine, eps: float) -> None:
        self._machine: Final = machine
        self._eps: Final = eps

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """``x`` ``[..., hidden]``; a new tensor."""
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        self._run(_rows(x), None, weight, _rows(y))
        return y

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of ``x + residual``, and that sum; two new tensors."""
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        total = residual.clone(memory_format=torch.contiguous_format)
        self._run(_rows(x), _rows(total), weight, _rows(y))
        return y, total

    def _run(self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, y: torch.Tensor) -> None:
        machine = self._machine
        weight = weight.to(x.dtype).contiguous()
        args = NormArgs(
            x=x.data_ptr(),
            residual=None if residual is None else residual.data_ptr(),
            weight=weight.data_ptr(),
            y=y.data_ptr(),
            rows=x.shape[0],
            size=x.shape[1],
            x_stride=x.stride(0),
            residual_stride=0 if residual is None else residual.stride(0),
            y_stride=y.stride(0),
            eps=self._eps,
            dtype=DTYPES[dtype_name(x.dtype)],
            level=machine.level,
            threads=machine.threads(),
        )
        machine.library.bb_rms_norm(args)


class SiluAndMul:
    """``silu(gate) * up`` where the last dimension holds gate and up side by side."""

    def __init__(self, machine: Machine) -> None:
        self._machine: Final = machine

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` ``[..., 2 * size]``; a new tensor ``[..., size]``."""
        machine = self._machine
        rows = _rows(x)
        y = x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
        out = _rows(y)
        args = GateArgs(
            x=rows.data_ptr(),
            y=out.data_ptr(),
            rows=rows.shape[0],
            size=out.shape[1],
            x_stride=rows.stride(0),
            y_stride=out.stride(0),
            dtype=DTYPES[dtype_name(x.dtype)],
            level=machine.level,
            threads=machine.threads(),
        )
        machine.library.bb_silu_and_mul(args)
        return y


class RotaryEmbedding:
    """Turns queries and keys by the angles of their positions."""

    def __init__(self, machine: Machine, interleaved: object) -> None:
        self._machine: Final = machine
        self._interleaved: Final = bool(interleaved)

    def turn(
        self, query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, table: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``query`` ``[T, H, D]``, ``key`` ``[T, Hkv, D]``, ``positions`` int64 ``[T]``.

        ``table`` float32 ``[positions, rotary size]``: cosines, then sines. Two new tensors.
        """
        # The library turns in place.
        query, key = (x.clone(memory_format=torch.contiguous_format) for x in (query, key))
        machine = self._machine
        args = RotaryArgs(
            query=query.data_ptr(),
            key=key.data_ptr(),
            table=table.data_ptr(),
            positions=positions.data_ptr(),
            tokens=query.shape[0],
            query_token=query.stride(0),
            query_head=query.stride(1),
            key_token=key.stride(0),
            key_head=key.stride(1),
            heads=query.shape[1],
            kv_heads=key.shape[1],
            rotary_size=table.shape[1],
            interleaved=self._interleaved,
            dtype=DTYPES[dtype_name(query.dtype)],
            level=machine.level,
            threads=machine.threads(),
        )
        machine.library.bb_rotary_embedding(args)
        return query, key


def _rows(x: torch.Tensor) -> torch.Tensor:
    """``x`` as rows ``[n, size]`` of contiguous elements: a view where its strides allow."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()
