"""torch_npu's fused operators as the core calls them: new tensors out, arguments untouched.

====================  ==========================================================  =================================
name                  call                                                        ``spec``
====================  ==========================================================  =================================
``rms_norm``          ``(x, weight) -> y``                                        hidden_size, dtype, eps
``add_rms_norm``      ``(x, residual, weight) -> (y, x + residual)``              hidden_size, dtype, eps
``silu_and_mul``      ``(x [..., 2 I]) -> [..., I]``                              dtype
``rotary_embedding``  ``(query, key, positions, cos_sin) -> (query, key)``        rotary_dim, interleaved, dtype
``top_k_top_p``       ``(logits [S, V], top_k [S], top_p [S]) -> logits``         none
====================  ==========================================================  =================================

Query and key are ``[T, heads, D]``, ``positions`` ``[T]``, ``cos_sin`` ``[positions, rotary_dim]``: cosines of all
pairs, then sines. ``top_k`` is int32 from 1 to 1,024; what is filtered out becomes minus infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from baseboard.contract import OperatorKernel
from baseboard_ascend_npu.operators import Operator, Operators

#: docstring, npu_mrope: what the rotated part of a 16-bit head must be a multiple of.
_ROTARY_MULTIPLE: Final = 32


def make_operator(operators: Operators, name: str, spec: Mapping[str, Any]) -> OperatorKernel | None:
    """The operator ``name``; None for one that is not known, that torch_npu lacks, or that does not take ``spec``."""
    makers: dict[str, tuple[Operator | None, Callable[[Operator, Mapping[str, Any]], OperatorKernel | None]]] = {
        "rms_norm": (operators.rms_norm, _rms_norm),
        "add_rms_norm": (operators.add_rms_norm, _add_rms_norm),
        "silu_and_mul": (operators.swiglu, _silu_and_mul),
        "rotary_embedding": (operators.rotary, _rotary_embedding),
        "top_k_top_p": (operators.top_k_top_p, _top_k_top_p),
    }
    operator, make = makers.get(name, (None, _silu_and_mul))
    return None if operator is None else make(operator, spec)


def _rms_norm(operator: Operator, spec: Mapping[str, Any]) -> OperatorKernel:
    eps = spec["eps"]
    return lambda x, weight: operator(_rows(x), weight, eps)[0].view(x.shape)


def _add_rms_norm(operator: Operator, spec: Mapping[str, Any]) -> OperatorKernel:
    eps = spec["eps"]

    def call(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, _, total = operator(_rows(x), _rows(residual), weight, eps)
        return y.view(x.shape), total.view(x.shape)

    return call


def _silu_and_mul(operator: Operator, spec: Mapping[str, Any]) -> OperatorKernel:
    del spec
    return lambda x: operator(x, -1)


def _rotary_embedding(operator: Operator, spec: Mapping[str, Any]) -> OperatorKernel | None:
    if spec["rotary_dim"] % _ROTARY_MULTIPLE:
        return None
    mode = "interleave" if spec["interleaved"] else "half"

    def call(
        query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        table = cos_sin.to(query.dtype)
        # Sections of 0 mean plain positions, of one axis.
        turned = operator(
            positions, query.flatten(1), key.flatten(1), table, query.shape[2], mrope_section=[0, 0, 0],
            rotary_mode=mode,
        )  # fmt: skip
        return turned[0].view(query.shape), turned[1].view(key.shape)

    return call


def _top_k_top_p(operator: Operator, spec: Mapping[str, Any]) -> OperatorKernel:
    del spec
    # The operator takes p before k.
    return lambda logits, top_k, top_p: operator(logits, top_p.to(logits.dtype), top_k)


def _rows(x: torch.Tensor) -> torch.Tensor:
    """``[..., hidden]`` as ``[rows, hidden]``: the operator wants two dimensions at least."""
    return x.reshape(-1, x.shape[-1])
