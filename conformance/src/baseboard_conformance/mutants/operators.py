"""A right backend with fused operators in plain torch, and wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from baseboard.contract import OperatorKernel, hookimpl
from baseboard_conformance.mutants.plain import PlainBackend


class Operators(PlainBackend):
    """Has every operator that the docs name."""

    @hookimpl
    def operator_kernel(self, name: str, spec: Mapping[str, Any]) -> OperatorKernel | None:
        makers: dict[str, Callable[[Mapping[str, Any]], OperatorKernel]] = {
            "rms_norm": lambda spec: lambda x, weight: self.norm(x, weight, spec["eps"]),
            "add_rms_norm": lambda spec: lambda x, residual, weight: self.add_norm(x, residual, weight, spec["eps"]),
            "silu_and_mul": lambda spec: self.gate,
            "rotary_embedding": lambda spec: (
                lambda query, key, positions, table: (
                    self.turn(query, table[positions], spec),
                    self.turn(key, table[positions], spec),
                )
            ),
        }
        return makers[name](spec) if name in makers else None

    # --- what can go wrong --------------------------------------------------------------------------------------

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype) * weight

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + residual
        return self.norm(total, weight, eps), total

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    def turn(self, x: torch.Tensor, table: torch.Tensor, spec: Mapping[str, Any]) -> torch.Tensor:
        """``x`` ``[T, heads, D]``, ``table`` ``[T, rotary_dim]``."""
        cosine, sine = table[:, None].float().chunk(2, dim=-1)
        first, second = self.pairs(spec)
        out, wide = x.clone(), x.float()
        out[..., first] = (wide[..., first] * cosine - wide[..., second] * sine).to(x.dtype)
        out[..., second] = (wide[..., second] * cosine + wide[..., first] * sine).to(x.dtype)
        return out

    def pairs(self, spec: Mapping[str, Any]) -> tuple[slice, slice]:
        size = spec["rotary_dim"]
        if spec["interleaved"]:
            return slice(0, size, 2), slice(1, size, 2)
        return slice(0, size // 2), slice(size // 2, size)


class EpsIgnored(Operators):
    """The norm's epsilon is a constant of its own."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return super().norm(x, weight, 1e-6)


class ResidualInPlace(Operators):
    """The sum takes the place of the residual."""

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        residual += x
        return self.norm(residual, weight, eps), residual


class GateBehind(Operators):
    """Gate and up change places."""

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        up, gate = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up


class AlwaysHalves(Operators):
    """Neighbours are asked for, and halves are turned."""

    def pairs(self, spec: Mapping[str, Any]) -> tuple[slice, slice]:
        return super().pairs({**spec, "interleaved": False})


class TurnsBack(Operators):
    """The angle has the wrong sign."""

    def turn(self, x: torch.Tensor, table: torch.Tensor, spec: Mapping[str, Any]) -> torch.Tensor:
        cosine, sine = table.chunk(2, dim=-1)
        return super().turn(x, torch.cat([cosine, -sine], dim=-1), spec)
