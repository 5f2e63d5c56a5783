"""The fused operators against float64 formulas, as the core calls them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from baseboard_ascend_npu.backend import AscendBackend

DTYPES = ["bfloat16", "float16", "float32"]


def rows(*shape: int, dtype: str, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, dtype))


def close(got: torch.Tensor, truth: torch.Tensor) -> None:
    torch.testing.assert_close(
        got.cpu().double(), truth, rtol=4 * torch.finfo(got.dtype).eps, atol=2 * torch.finfo(got.dtype).eps
    )


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return weight.double() * x.double() / (x.double().square().mean(-1, keepdim=True) + eps).sqrt()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(48,), (3, 48), (1, 5, 4, 48)])
def test_rms_norm(backend: AscendBackend, dtype: str, shape: tuple[int, ...]) -> None:
    kernel: Any = backend.operator_kernel("rms_norm", {"hidden_size": 48, "dtype": dtype, "eps": 1e-3})
    x, weight = rows(*shape, dtype=dtype), rows(48, dtype=dtype, seed=1)
    got = kernel(x.to("npu"), weight.to("npu"))
    assert got.shape == shape
    close(got, norm(x, weight, 1e-3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm(backend: AscendBackend, dtype: str) -> None:
    kernel: Any = backend.operator_kernel("add_rms_norm", {"hidden_size": 48, "dtype": dtype, "eps": 1e-3})
    x, residual, weight = (rows(*shape, dtype=dtype, seed=i) for i, shape in enumerate([(1, 5, 48), (1, 5, 48), (48,)]))
    got, total = kernel(x.to("npu"), residual.to("npu"), weight.to("npu"))
    assert torch.equal(total.cpu(), x + residual)
    close(got, norm(x + residual, weight, 1e-3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_and_mul(backend: AscendBackend, dtype: str) -> None:
    kernel: Any = backend.operator_kernel("silu_and_mul", {"dtype": dtype})
    x = rows(2, 3, 20, dtype=dtype)
    gate, up = x.double().chunk(2, -1)
    close(kernel(x.to("npu")), gate * gate.sigmoid() * up)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [32, 64])
def test_rotary_embedding(backend: AscendBackend, dtype: str, interleaved: bool, rotary_dim: int) -> None:
    spec = {"rotary_dim": rotary_dim, "interleaved": interleaved, "dtype": dtype}
    kernel: Any = backend.operator_kernel("rotary_embedding", spec)
    query, key = rows(5, 4, 64, dtype=dtype), rows(5, 2, 64, dtype=dtype, seed=1)
    positions = torch.tensor([0, 3, 1, 7, 7])
    angles = torch.rand(8, rotary_dim // 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    table = torch.cat([angles.cos(), angles.sin()], -1).to(getattr(torch, dtype))
    got = kernel(query.to("npu"), key.to("npu"), positions.to("npu"), table.to("npu"))
    cos, sin = table[positions].double()[:, None].chunk(2, -1)
    for turned, x in zip(got, (query, key), strict=True):
        expected = x.double().clone()
        first = slice(0, rotary_dim, 2) if interleaved else slice(0, rotary_dim // 2)
        second = slice(1, rotary_dim, 2) if interleaved else slice(rotary_dim // 2, rotary_dim)
        a, b = x.double()[..., first], x.double()[..., second]
        expected[..., first], expected[..., second] = a * cos - b * sin, b * cos + a * sin
        close(turned, expected)


def test_a_rotation_that_the_operator_does_not_take(backend: AscendBackend) -> None:
    spec = {"rotary_dim": 24, "interleaved": False, "dtype": "bfloat16"}
    assert backend.operator_kernel("rotary_embedding", spec) is None


def test_top_k_top_p(backend: AscendBackend) -> None:
    kernel: Any = backend.operator_kernel("top_k_top_p", {})
    logits = torch.log(torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05], [0.05, 0.1, 0.15, 0.2, 0.5]]))
    kept = []
    for top_k, top_p in (([5, 5], [1.0, 1.0]), ([2, 3], [1.0, 1.0]), ([5, 5], [0.6, 0.8]), ([1, 4], [1.0, 0.01])):
        ks, ps = torch.tensor(top_k, dtype=torch.int32), torch.tensor(top_p)
        result = kernel(logits.to("npu"), ks.to("npu"), ps.to("npu")).cpu()
        assert torch.equal(result[result.isfinite()], logits[result.isfinite()])
        kept.append([row.isfinite().nonzero().flatten().tolist() for row in result])
    assert kept == [
        [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]],
        [[0, 1], [2, 3, 4]],
        [[0, 1], [2, 3, 4]],  # 0.5 does not reach 0.6; 0.5 + 0.2 does not reach 0.8
        [[0], [4]],
    ]


def test_other_names(backend: AscendBackend) -> None:
    assert backend.operator_kernel("layer_norm", {"eps": 1e-6}) is None
