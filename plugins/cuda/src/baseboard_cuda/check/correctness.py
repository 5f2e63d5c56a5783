"""Attention in every dtype against torch's own in float64, on whatever device the backend has."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch

from baseboard.contract import KVDType
from baseboard_cuda.backend import CudaBackend
from baseboard_cuda.check.layer import Shape, WrittenLayer

#: Largest error, relative to the largest value: some roundings of the dtype; FP8 has three bits of mantissa.
_ALLOWED = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
_ALLOWED_FP8 = 8e-2


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far one case is from the truth."""

    name: str
    error: float
    allowed: float

    @property
    def passed(self) -> bool:
        return self.error <= self.allowed


def deviations(backend: CudaBackend, shapes: tuple[Shape, ...]) -> list[Deviation]:
    """Every dtype that the backend has for such layers, keys and values stored as they are and in FP8."""
    promise = backend.capabilities()
    dtypes = [getattr(torch, name) for name in promise.dtypes]
    return [
        deviation(backend, shape, dtype, kv_dtype)
        for shape, dtype, kv_dtype in product(shapes, dtypes, promise.kv_dtypes)
        for attention, kv in [shape.specs(dtype, kv_dtype)]
        if not backend.unsupported(kv, attention)
    ]


def deviation(backend: CudaBackend, shape: Shape, dtype: torch.dtype, kv_dtype: KVDType) -> Deviation:
    """Write whole sequences, attend with their last queries."""
    generator = torch.Generator().manual_seed(0)
    tokens = shape.sequences * shape.length
    key, value = (torch.randn(tokens, shape.kv_heads, shape.head_size, generator=generator).to(dtype) for _ in range(2))
    query = torch.randn(shape.sequences * shape.queries, shape.heads, shape.head_size, generator=generator).to(dtype)
    layer = WrittenLayer(backend, shape, kv_dtype, key, value)
    got = layer.attend(query.to(backend.torch_device())).cpu().double()
    truth = _truth(shape, query, key, value)
    error = float((got - truth).abs().max() / truth.abs().max())
    stored = "" if kv_dtype == "auto" else " over FP8"
    allowed = _ALLOWED[dtype] if kv_dtype == "auto" else _ALLOWED_FP8
    return Deviation(f"{str(dtype).removeprefix('torch.')}{stored}, {shape}", error, allowed)


def _truth(shape: Shape, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.double().unflatten(0, (shape.sequences, -1)).transpose(1, 2) for x in (query, key, value))
    ratio = shape.heads // shape.kv_heads
    positions = torch.arange(shape.length - shape.queries, shape.length)
    result = torch.nn.functional.scaled_dot_product_attention(
        q,
        k.repeat_interleave(ratio, 1),
        v.repeat_interleave(ratio, 1),
        attn_mask=torch.arange(shape.length) <= positions[:, None],
    )
    return result.transpose(1, 2).flatten(0, 1)
