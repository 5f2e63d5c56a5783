"""Keys and values in FP8, against the oracle on numbers that torch has rounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

import baseboard_cuda
from baseboard.contract import BackendUnavailable
from core.backends.test_reference_grid import FEATURES
from core.backends.world import Row, World, make_world
from plugins.cuda.interpreted.judging import check

ROWS = [Row(1, 20), Row(1, 70), Row(3, 11), Row(9, 9)]


@pytest.fixture(scope="module", params=["token_head", "tensor"])
def scaled(request, interpreter) -> Iterator[tuple[str, object]]:
    backend = baseboard_cuda.open_backend(interpreter, {"fp8_scale": request.param})
    yield request.param, backend
    backend.close()


def rounded(x: torch.Tensor, scale: str) -> torch.Tensor:
    """What is left of ``x`` ``[L, Hkv, D]``."""
    wide = x.float()
    factor = torch.ones(*x.shape[:2], 1)
    if scale == "token_head":
        largest = wide.abs().amax(-1, keepdim=True)
        factor = torch.where(largest == 0, 1.0, largest / 448)
    return (wide / factor).clamp(-448, 448).to(torch.float8_e4m3fn).float() * factor


def fp8_world(dtype: str, **options) -> World:
    world = make_world(ROWS, dtype, (4, 2), 24, 8, num_decodes=2, head_size_v=10, **options)
    world.kv = replace(world.kv, kv_dtype="fp8_e4m3")
    return world


def run(world: World, backend, fill: int) -> torch.Tensor:
    """Write everything but the last step, then that; slots that nobody owns hold the byte ``fill``."""
    cache = backend.allocate_kv_cache(world.kv, world.num_blocks)
    cache.pool.fill_(fill)
    kernel = backend.attention_kernel(world.spec, world.kv)
    for index, row in enumerate(world.rows):
        done = row.seq_len - row.query_len
        if done:
            made = backend.build_attention_metadata(world.only(index, Row(done, done)).batch(), cache)
            kernel.write(world.key[index][:done], world.value[index][:done], cache.layer(0), made)
    return world.step(backend, cache)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("feature", FEATURES)
def test_attention_over_fp8(scaled, dtype, feature) -> None:
    scale, backend = scaled
    world = fp8_world(dtype, **FEATURES[feature](4))
    got, other = (run(world, backend, fill) for fill in (0xFF, 0x7E))  # NaN, and the largest number
    assert torch.equal(got, other)
    stored = replace(world)
    stored.query = world.query
    stored.key, stored.value = ([rounded(x, scale) for x in tensors] for tensors in (world.key, world.value))
    if dtype == "float16":
        # The kernel multiplies scores by scales that are not rounded; so do the truth and, nearly, the naive one.
        stored.key, stored.value = ([x.half() for x in tensors] for tensors in (stored.key, stored.value))
    check(stored, got)


def test_a_scale_for_each_head_keeps_small_rows_apart_from_large_ones(interpreter) -> None:
    """Values of 0.001 and of 10,000 in one block: each as exact as FP8 is."""
    backend = baseboard_cuda.open_backend(interpreter, {})
    world = fp8_world("float32")
    for key, value in zip(world.key, world.value, strict=True):
        key.mul_(0.01)
        value[:, 0].mul_(1e-3)
        value[:, 1].mul_(1e4)
    check_rows = run(world, backend, 0xFF)
    exact = make_world(ROWS, "float32", (4, 2), 24, 8, num_decodes=2, head_size_v=10)
    exact.query, exact.key, exact.value = world.query, world.key, [rounded(v, "token_head") for v in world.value]
    truth = run_reference(exact)
    relative = (check_rows - truth).norm(dim=-1) / truth.norm(dim=-1)
    assert relative.max() < 0.02


def run_reference(world: World) -> torch.Tensor:
    from core.backends.oracle import attention

    parts = [
        attention(q.double().numpy(), k.double().numpy(), v.double().numpy(), world.spec)
        for q, k, v in zip(world.query, world.key, world.value, strict=True)
    ]
    return torch.from_numpy(np.concatenate(parts)).float()


@pytest.mark.parametrize("scale", ["token_head", "tensor"])
def test_what_a_block_takes(interpreter, scale) -> None:
    """8 tokens, 2 heads: 24 bytes of key, 10 of value each, padded to 16; and 4 bytes of scale for each of both."""
    backend = baseboard_cuda.open_backend(interpreter, {"fp8_scale": scale})
    kv = replace(fp8_world("float16").kv, num_layers=3)
    nbytes = 16 * 24 + 16 * 10 + (2 * 16 * 4 if scale == "token_head" else 0)
    assert backend.kv_block_nbytes(kv) == 3 * nbytes
    assert [plane.shape for plane in backend.allocate_kv_cache(kv, 5).planes] == [(5, nbytes)] * 3


def test_rows_of_zeros_and_of_no_numbers(interpreter) -> None:
    backend = baseboard_cuda.open_backend(interpreter, {})
    world = fp8_world("float32")
    for key, value in zip(world.key, world.value, strict=True):
        key.zero_()
        value.zero_()
    assert (run(world, backend, 0xFF) == 0).all()
    world.value[3][2, 0, 4] = torch.nan
    got = run(world, backend, 0xFF)
    own = got[5:]  # the last sequence's rows
    assert got[:5].isfinite().all()
    assert own[2:, :2].isnan().any()
    assert own[:, 2:].isfinite().all()


def test_other_scales_are_refused(interpreter) -> None:
    with pytest.raises(BackendUnavailable, match="token_head, tensor"):
        baseboard_cuda.open_backend(interpreter, {"fp8_scale": "block"})
    with pytest.raises(BackendUnavailable, match="no option speed"):
        baseboard_cuda.open_backend(interpreter, {"speed": "full"})
