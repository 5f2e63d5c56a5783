"""A wrapper that checks all that an attention kernel is given and gives back. For debugging: it costs time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from baseboard.contract import AttentionKernel, AttentionSpec, KVCache, KVCacheSpec, StepBatch
from baseboard.kit.batch_checks import check_batch, violation
from baseboard.kit.dtypes import torch_dtype


@dataclass(frozen=True, slots=True, eq=False)
class CheckedMetadata:
    """The backend's metadata of a step, and what a checked kernel must know of that step."""

    inner: object
    num_tokens: int
    device: torch.device

    @classmethod
    def of(cls, batch: StepBatch, cache: KVCache, inner: object) -> CheckedMetadata:
        """Check ``batch`` against ``cache`` and remember its size. Raises ``ContractError``."""
        check_batch(batch, cache.num_blocks, cache.spec.block_size)
        return cls(inner, batch.num_tokens, cache.planes[0].device)


def checked(kernel: AttentionKernel, attention: AttentionSpec, kv: KVCacheSpec) -> AttentionKernel:
    """``kernel`` behind checks of every tensor: shape, dtype, contiguous last dimension, device.

    The metadata it is called with must be :meth:`CheckedMetadata.of` the step's batch. A wrong argument raises
    ``ContractError`` naming it, what it is and what it must be, before ``kernel`` sees it; so does a wrong result.
    """
    return _CheckedKernel(kernel, attention, kv)


class _CheckedKernel:
    def __init__(self, kernel: AttentionKernel, attention: AttentionSpec, kv: KVCacheSpec) -> None:
        self._kernel = kernel
        self._dtype = torch_dtype(kv.dtype)
        self._key = (kv.num_kv_heads, kv.head_size)
        self._value = (kv.num_kv_heads, kv.head_size_v)
        self._query = (attention.num_heads, attention.head_size)
        self._out = (attention.num_heads, kv.head_size_v)

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: Any, metadata: Any) -> None:
        step = _step(metadata)
        self._check("key", key, step, self._key)
        self._check("value", value, step, self._value)
        self._kernel.write(key, value, layer, step.inner)

    def attend(self, query: torch.Tensor, layer: Any, metadata: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        step = _step(metadata)
        self._check("query", query, step, self._query)
        if out is not None:
            self._check("out", out, step, self._out)
        result = self._kernel.attend(query, layer, step.inner, out)
        self._check("result of attend", result, step, self._out)
        return result

    def _check(self, name: str, tensor: torch.Tensor, step: CheckedMetadata, row: tuple[int, int]) -> None:
        shape = (step.num_tokens, *row)
        if tuple(tensor.shape) != shape:
            raise violation(name, f"shape {list(tensor.shape)}", f"shape {list(shape)}")
        if tensor.dtype != self._dtype:
            raise violation(name, tensor.dtype, str(self._dtype))
        if tensor.device != step.device:
            raise violation(name, f"a tensor on {tensor.device}", f"one on {step.device}")
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise violation(name, f"strides {list(tensor.stride())}", "a contiguous last dimension")


def _step(metadata: object) -> CheckedMetadata:
    if not isinstance(metadata, CheckedMetadata):
        raise violation("metadata", f"a {type(metadata).__name__}", "what CheckedMetadata.of made of the step's batch")
    return metadata
