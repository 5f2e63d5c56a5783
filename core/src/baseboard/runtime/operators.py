"""Lets a backend's fused operators take the place of a model's modules, where both mean the same.

An operator is offered only for modules that are shown, by running them, to compute the textbook formula; and what the
backend gives is compared with it once before it is used. So a model never computes anything else than its own text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from baseboard.contract import BackendHooks, ContractError, OperatorKernel

if TYPE_CHECKING:
    import torch
    from torch import nn

_TRIAL_ROWS: Final = 4
#: Largest difference to the textbook formula, relative to the largest value: rounding of inputs and result.
_TOLERANCE: Final = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 4e-3}


@dataclass(frozen=True, slots=True)
class Replaced:
    """How many modules of a model run an operator of the backend's, by operator."""

    counts: Mapping[str, int]


def use_operators(hook: BackendHooks, model: nn.Module) -> Replaced:
    """Offer every RMS norm of ``model`` to the backend. Raises ``ContractError`` for an operator that computes wrong.

    A backend that returns None for it costs nothing: the module stays as it is.
    """
    kernels: dict[_NormKind, OperatorKernel | None] = {}
    count = 0
    for module in model.modules():
        _restore(module)
        kind = _norm_kind(module)
        if kind is None:
            continue
        if kind not in kernels:
            kernels[kind] = hook.operator_kernel(name="rms_norm", spec=kind.spec())
        kernel = kernels[kind]
        weight = cast("torch.Tensor", module.weight)
        if kernel is not None and _is_textbook(module, weight, kind):
            _check(kernel, weight, kind)
            module.forward = _Norm(kernel, weight)
            count += 1
    return Replaced({"rms_norm": count})


@dataclass(frozen=True, slots=True)
class _NormKind:
    hidden_size: int
    dtype: str
    eps: float

    def spec(self) -> dict[str, Any]:
        return {"hidden_size": self.hidden_size, "dtype": self.dtype, "eps": self.eps}


class _Norm:
    """Takes the place of a module's ``forward``."""

    __slots__ = ("_kernel", "_weight")

    def __init__(self, kernel: Callable[..., torch.Tensor], weight: torch.Tensor) -> None:
        self._kernel = kernel
        self._weight = weight

    def __call__(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self._kernel(hidden_states, self._weight)


def _restore(module: nn.Module) -> None:
    """Take back what an earlier backend put in."""
    if isinstance(module.__dict__.get("forward"), _Norm):
        del module.__dict__["forward"]


def _norm_kind(module: nn.Module) -> _NormKind | None:
    """What kind of RMS norm a module seems to be, by its name and attributes."""
    if not type(module).__name__.endswith("RMSNorm"):
        return None
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if weight is None or weight.ndim != 1 or not isinstance(eps, float):
        return None
    return _NormKind(len(weight), str(weight.dtype).removeprefix("torch."), eps)


def _trial(weight: torch.Tensor) -> torch.Tensor:
    import torch

    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(_TRIAL_ROWS, len(weight), generator=generator, dtype=torch.float32)
    return rows.to(dtype=weight.dtype, device=weight.device)


def _textbook(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``weight * x / sqrt(mean(x^2) + eps)``: Zhang and Sennrich 2019."""
    wide = rows.double()
    return weight.double() * wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt()


def _distance(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found.double() - truth).abs().max() / truth.abs().max().clamp(min=1e-12))


def _is_textbook(module: nn.Module, weight: torch.Tensor, kind: _NormKind) -> bool:
    import torch

    rows = _trial(weight)
    with torch.inference_mode():
        return _distance(module(rows), _textbook(rows, weight, kind.eps)) <= _TOLERANCE[kind.dtype]


def _check(kernel: OperatorKernel, weight: torch.Tensor, kind: _NormKind) -> None:
    import torch

    rows = _trial(weight)
    try:
        with torch.inference_mode():
            found = kernel(rows.clone(), weight)
    except Exception as error:  # a plugin's own code: whatever it raises, the operator cannot be used
        raise ContractError(f"the backend's operator rms_norm fails for {kind}: {error!r}") from error
    off = _distance(found, _textbook(rows, weight, kind.eps))
    if not off <= _TOLERANCE[kind.dtype]:
        raise ContractError(f"the backend's operator rms_norm is off by {off:.2e} of the largest value for {kind}")
