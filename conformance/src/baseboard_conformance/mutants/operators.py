"""A right backend with fused operators in plain torch, and wrong ones."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias

import torch

from baseboard.contract import OperatorKernel, hookimpl
from baseboard_conformance.mutants.plain import PlainBackend

Spec: TypeAlias = Mapping[str, Any]


class Operators(PlainBackend):
    """Has every operator that the docs name."""

    @hookimpl
    def operator_kernel(self, name: str, spec: Spec) -> OperatorKernel | None:
        known: Mapping[str, OperatorKernel] = {
            "rms_norm": self.norm,
            "add_rms_norm": self.add_norm,
            "silu_and_mul": self.gate,
            "rotary_embedding": self.turn,
        }
        return partial(known[name], spec) if name in known else None

    # --- what can go wrong --------------------------------------------------------------------------------------

    def norm(self, spec: Spec, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * (wide.square().mean(-1, keepdim=True) + spec["eps"]).rsqrt()).to(x.dtype) * weight

    def add_norm(
        self, spec: Spec, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + residual
        return self.norm(spec, total, weight), total

    def gate(self, spec: Spec, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    def turn(
        self, spec: Spec, query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, table: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cosine, sine = table[positions, None].chunk(2, dim=-1)
        first, second = self.pairs(spec)
        turned: list[torch.Tensor] = []
        for x in (query, key):
            out, wide = x.clone(), x.float()
            out[..., first] = (wide[..., first] * cosine - wide[..., second] * sine).to(x.dtype)
            out[..., second] = (wide[..., second] * cosine + wide[..., first] * sine).to(x.dtype)
            turned.append(out)
        return turned[0], turned[1]

    def pairs(self, spec: Spec) -> tuple[slice, slice]:
        size = spec["rotary_dim"]
        if spec["interleaved"]:
            return slice(0, size, 2), slice(1, size, 2)
        return slice(0, size // 2), slice(size // 2, size)


class EpsIgnored(Operators):
    """The norm's epsilon is a constant of its own."""

    def norm(self, spec: Spec, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return super().norm({**spec, "eps": 1e-6}, x, weight)


class ResidualInPlace(Operators):
    """The sum takes the place of the residual."""

    def add_norm(
        self, spec: Spec, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        residual += x
        return self.norm(spec, residual, weight), residual


class GateBehind(Operators):
    """Gate and up change places."""

    def gate(self, spec: Spec, x: torch.Tensor) -> torch.Tensor:
        up, gate = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up


class AlwaysHalves(Operators):
    """Neighbours are asked for, and halves are turned."""

    def pairs(self, spec: Spec) -> tuple[slice, slice]:
        return super().pairs({**spec, "interleaved": False})


class TurnsBack(Operators):
    """The angle has the wrong sign."""

    def turn(
        self, spec: Spec, query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, table: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cosine, sine = table.chunk(2, dim=-1)
        return super().turn(spec, query, key, positions, torch.cat([cosine, -sine], dim=-1))
