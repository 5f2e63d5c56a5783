"""The operators of torch_npu that this backend calls: found once, when a device is opened."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from baseboard.contract import BackendUnavailable

Operator: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Operators:
    """None for an optional operator that this torch_npu, or this installation, does not have."""

    fused: Operator  #: npu_fused_infer_attention_score
    fused_with_sinks: Operator | None  #: npu_fused_infer_attention_score_v2
    paged: Operator | None  #: _npu_paged_attention, which needs CANN's NNAL package
    scatter: Operator  #: npu_scatter_pa_kv_cache
    rms_norm: Operator | None  #: npu_rms_norm
    add_rms_norm: Operator | None  #: npu_add_rms_norm
    swiglu: Operator | None  #: npu_swiglu
    rotary: Operator | None  #: npu_mrope
    top_k_top_p: Operator | None  #: npu_top_k_top_p


def find_operators(torch_npu_version: str) -> Operators:
    """Look the operators up. Raises ``BackendUnavailable`` that names the one that is missing."""
    return Operators(
        fused=_required("npu_fused_infer_attention_score", torch_npu_version),
        fused_with_sinks=_optional("npu", "npu_fused_infer_attention_score_v2"),
        paged=_optional("atb", "_npu_paged_attention") if _has_nnal() else None,
        scatter=_required("npu_scatter_pa_kv_cache", torch_npu_version),
        rms_norm=_optional("npu", "npu_rms_norm"),
        add_rms_norm=_optional("npu", "npu_add_rms_norm"),
        swiglu=_optional("npu", "npu_swiglu"),
        rotary=_optional("npu", "npu_mrope"),
        top_k_top_p=_optional("npu", "npu_top_k_top_p"),
    )


def _required(name: str, version: str) -> Operator:
    found = _optional("npu", name)
    if found is None:
        raise BackendUnavailable(
            f"the ascend_npu backend needs the operator {name}, which torch_npu {version} does not have: "
            f"upgrade torch_npu"
        )
    return found


def _optional(namespace: str, name: str) -> Operator | None:
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return None if packet is None else packet.default


def _has_nnal() -> bool:
    """Whether libatb.so is there: the atb operators are declared without it and fail when they are called."""
    try:
        ctypes.CDLL("libatb.so")
    except OSError:
        return False
    return True
