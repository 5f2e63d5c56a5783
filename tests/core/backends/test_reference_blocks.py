"""Pools and the moves between their blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from baseboard.contract import KVCache, KVCacheSpec

SPECS = (
    KVCacheSpec(2, 2, 8, 8, "float32", 4),
    KVCacheSpec(3, 1, 16, 5, "bfloat16", 16),
    KVCacheSpec(1, 3, 1, 1, "float16", 1),
)


@pytest.fixture(params=SPECS, ids=str)
def spec(request) -> Iterator[KVCacheSpec]:
    return request.param


def fill(cache: KVCache, seed: int) -> list[np.ndarray]:
    """Random bytes, so that there are NaNs of every payload among the numbers; returns a copy of the planes."""
    for index, plane in enumerate(cache.planes):
        generator = torch.Generator().manual_seed(seed + index)
        plane.copy_(torch.randint(0, 256, plane.shape, generator=generator, dtype=torch.uint8))
    return planes(cache)


def planes(cache: KVCache) -> list[np.ndarray]:
    return [plane.numpy().copy() for plane in cache.planes]


def test_planes_add_up_to_the_block(backend, spec) -> None:
    cache = backend.allocate_kv_cache(spec, 7)
    assert cache.num_blocks == 7
    assert cache.spec is spec
    assert all(plane.dtype == torch.uint8 and plane.shape[0] == 7 for plane in cache.planes)
    assert sum(plane.shape[1] for plane in cache.planes) == backend.kv_block_nbytes(spec)
    assert all(not plane.any() for plane in cache.planes)


@pytest.mark.parametrize(
    ("spec", "nbytes"),
    [
        (KVCacheSpec(30, 3, 64, 64, "bfloat16", 16), 30 * 16 * 3 * (64 + 64) * 2),
        (KVCacheSpec(1, 1, 256, 256, "float32", 1), 2048),  # the head size is the one given, whatever the hidden size
        (KVCacheSpec(2, 4, 24, 10, "float16", 8), 2 * 8 * 4 * 34 * 2),
    ],
)
def test_block_size_in_bytes(backend, spec, nbytes) -> None:
    assert backend.kv_block_nbytes(spec) == nbytes


def test_copy_is_bit_exact_and_touches_nothing_else(backend, spec) -> None:
    cache = backend.allocate_kv_cache(spec, 9)
    expected = fill(cache, 1)
    backend.copy_blocks(cache, np.array([[5, 6], [5, 7], [1, 8]]))
    for plane in expected:
        plane[[6, 7, 8]] = plane[[5, 5, 1]]
    for got, want in zip(planes(cache), expected, strict=True):
        assert np.array_equal(got, want)


def test_swap_out_and_in_is_bit_exact(backend, spec) -> None:
    device = backend.allocate_kv_cache(spec, 9)
    host = backend.allocate_host_kv_cache(device, 4)
    assert [p.shape[1] for p in host.planes] == [p.shape[1] for p in device.planes]
    old_device, old_host = fill(device, 1), fill(host, 100)
    out = backend.swap_blocks(device, host, np.array([[3, 0], [8, 2]]))
    out.wait_on_stream()
    assert out.done()
    assert out.nbytes == 2 * backend.kv_block_nbytes(spec)
    for got, was, source in zip(planes(host), old_host, old_device, strict=True):
        assert np.array_equal(got, np.stack([source[3], was[1], source[8], was[3]]))
    fill(device, 50)
    back = backend.swap_blocks(host, device, np.array([[0, 8], [2, 1]]))
    back.wait()
    for got, source in zip(planes(device), old_device, strict=True):
        assert np.array_equal(got[8], source[3])
        assert np.array_equal(got[1], source[8])


def test_zeroing(backend, spec) -> None:
    cache = backend.allocate_kv_cache(spec, 5)
    expected = fill(cache, 1)
    backend.zero_blocks(cache, np.array([4, 1, 4]))
    for plane, got in zip(expected, planes(cache), strict=True):
        plane[[1, 4]] = 0
        assert np.array_equal(got, plane)


@pytest.mark.parametrize("pairs", [np.empty((0, 2), np.int64), np.array([])])
def test_no_pairs_are_no_work(backend, pairs) -> None:
    device = backend.allocate_kv_cache(SPECS[0], 3)
    host = backend.allocate_host_kv_cache(device, 3)
    before = fill(device, 1)
    backend.copy_blocks(device, pairs)
    transfer = backend.swap_blocks(device, host, pairs)
    backend.zero_blocks(device, np.array([]))
    assert transfer.done()
    assert transfer.nbytes == 0
    assert all(map(np.array_equal, planes(device), before))
    assert not any(plane.any() for plane in planes(host))


@pytest.mark.parametrize(
    ("pairs", "named"),
    [
        ([[5, 6], [6, 7]], r"\[6\] are both"),
        ([[5, 5]], r"\[5\] are both"),
        ([[5, 6], [4, 6]], r"\[6\] are given more than once"),
        ([[5, 9]], r"destination block ids \[9\] .* 0 to 8"),
        ([[-1, 2]], r"source block ids \[-1\]"),
        ([[1, 2, 3]], r"shape \[n, 2\], not \[1, 3\]"),
        ([[1.0, 2.0]], "integers, not float64"),
    ],
)
def test_bad_copies_are_refused_before_anything_moves(backend, pairs, named) -> None:
    cache = backend.allocate_kv_cache(SPECS[0], 9)
    before = fill(cache, 1)
    with pytest.raises(ValueError, match=named):
        backend.copy_blocks(cache, np.array([[1, 2], *pairs]) if len(pairs[0]) == 2 else np.array(pairs))
    assert all(map(np.array_equal, planes(cache), before))


@pytest.mark.parametrize(
    ("pairs", "named"),
    [([[1, 0], [2, 0]], r"\[0\] are given more than once"), ([[1, 4]], r"destination block ids \[4\]")],
)
def test_bad_swaps_are_refused_before_anything_moves(backend, pairs, named) -> None:
    device = backend.allocate_kv_cache(SPECS[0], 9)
    host = backend.allocate_host_kv_cache(device, 4)
    fill(device, 1)
    before = fill(host, 7)
    with pytest.raises(ValueError, match=named):
        backend.swap_blocks(device, host, np.array([[3, 3], *pairs]))
    assert all(map(np.array_equal, planes(host), before))


def test_a_block_may_have_one_id_in_both_pools(backend) -> None:
    device = backend.allocate_kv_cache(SPECS[0], 4)
    host = backend.allocate_host_kv_cache(device, 4)
    source = fill(device, 1)
    backend.swap_blocks(device, host, np.array([[1, 2], [2, 1]]))
    for got, want in zip(planes(host), source, strict=True):
        assert np.array_equal(got[[2, 1]], want[[1, 2]])


def test_swap_needs_two_caches_alike(backend) -> None:
    one, other = (backend.allocate_kv_cache(spec, 4) for spec in SPECS[:2])
    with pytest.raises(ValueError, match="use copy_blocks"):
        backend.swap_blocks(one, one, np.array([[1, 2]]))
    with pytest.raises(ValueError, match="the planes differ"):
        backend.swap_blocks(one, other, np.array([[1, 2]]))


def test_zeroing_an_unknown_block(backend) -> None:
    cache = backend.allocate_kv_cache(SPECS[0], 4)
    before = fill(cache, 1)
    with pytest.raises(ValueError, match=r"\[4, -1\]"):
        backend.zero_blocks(cache, np.array([1, 4, -1]))
    with pytest.raises(ValueError, match=r"shape \[n\]"):
        backend.zero_blocks(cache, np.array([[1]]))
    assert all(map(np.array_equal, planes(cache), before))


@pytest.mark.parametrize("num_blocks", [2**38, 2**52, 2**62])
def test_a_pool_that_does_not_fit(backend, num_blocks) -> None:
    spec = KVCacheSpec(2, 2, 64, 64, "float32", 16)
    with pytest.raises(torch.OutOfMemoryError, match="do not fit"):
        backend.allocate_kv_cache(spec, num_blocks)
    small = backend.allocate_kv_cache(spec, 2)
    with pytest.raises(torch.OutOfMemoryError, match="do not fit"):
        backend.allocate_host_kv_cache(small, num_blocks)


def test_a_pool_without_blocks(backend) -> None:
    with pytest.raises(ValueError, match="num_blocks=0"):
        backend.allocate_kv_cache(SPECS[0], 0)
