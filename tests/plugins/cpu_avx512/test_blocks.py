"""Copies, swaps, zeros and pools."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch

from baseboard.contract import BackendUnavailable, KVCacheSpec
from baseboard.kit.host_memory import HostMemory
from baseboard_cpu_avx512 import memory
from plugins.cpu_avx512.conftest import LEVELS, open_at

SPEC = KVCacheSpec(3, 2, 24, 40, "bfloat16", 8)


def pairs(*values: tuple[int, int]) -> np.ndarray:
    return np.array(values, dtype=np.int64).reshape(-1, 2)


def filled(backend, num_blocks: int, spec: KVCacheSpec = SPEC):
    cache = backend.allocate_kv_cache(spec, num_blocks)
    generator = torch.Generator().manual_seed(num_blocks)
    for plane in cache.planes:
        plane.copy_(torch.randint(0, 256, plane.shape, dtype=torch.uint8, generator=generator))
    return cache


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sizes_are_exact(fastest, dtype, kv_dtype) -> None:
    spec = KVCacheSpec(3, 2, 24, 40, dtype, 8, kv_dtype)
    cache = fastest.allocate_kv_cache(spec, 5)
    element = 1 if kv_dtype == "int8" else torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    scales = 2 * 8 * 2 * 4 if kv_dtype == "int8" else 0
    assert fastest.kv_block_nbytes(spec) == 3 * (8 * 2 * (24 + 40) * element + scales)
    assert sum(plane.shape[1] for plane in cache.planes) == fastest.kv_block_nbytes(spec)
    assert cache.num_blocks == 5
    assert all(plane.shape[0] == 5 and not plane.any() for plane in cache.planes)
    assert all(plane.is_contiguous() and plane.data_ptr() % 64 == 0 for plane in cache.planes)


def test_copy_moves_blocks_of_all_layers(fastest) -> None:
    cache = filled(fastest, 9)
    before = [plane.clone() for plane in cache.planes]
    fastest.copy_blocks(cache, pairs((1, 4), (1, 5), (8, 0)))
    for old, new in zip(before, cache.planes, strict=True):
        expected = old.clone()
        expected[[4, 5, 0]] = old[[1, 1, 8]]
        assert torch.equal(new, expected)


def test_zero_wipes_blocks_of_all_layers(fastest) -> None:
    cache = filled(fastest, 6)
    before = [plane.clone() for plane in cache.planes]
    fastest.zero_blocks(cache, np.array([2, 5]))
    for old, new in zip(before, cache.planes, strict=True):
        expected = old.clone()
        expected[[2, 5]] = 0
        assert torch.equal(new, expected)


@pytest.mark.parametrize("head_size", [24, 128])
def test_swap_there_and_back_keeps_every_bit(fastest, head_size) -> None:
    spec = KVCacheSpec(3, 2, head_size, head_size, "float32", 16)
    cache = filled(fastest, 40, spec)
    host = fastest.allocate_host_kv_cache(cache, 12)
    before = [plane.clone() for plane in cache.planes]
    ids = np.stack((np.arange(3, 15), np.arange(12)[::-1]), axis=1)
    out = fastest.swap_blocks(cache, host, ids)
    assert out.nbytes == 12 * fastest.kv_block_nbytes(spec)
    out.wait()
    assert out.done()
    fastest.zero_blocks(cache, ids[:, 0])
    fastest.swap_blocks(host, cache, ids[:, ::-1].copy()).wait_on_stream()
    assert all(map(torch.equal, before, cache.planes))


def test_swaps_run_beside_the_caller_in_order(fastest) -> None:
    """The first transfer is held up: neither it nor the one behind it lands, and the caller goes on."""
    gate = threading.Event()
    fastest._mover._swaps.submit(gate.wait)
    cache, host = filled(fastest, 9), fastest.allocate_host_kv_cache(filled(fastest, 4), 4)
    out = fastest.swap_blocks(cache, host, pairs((1, 0)))
    back = fastest.swap_blocks(host, cache, pairs((0, 2)))
    assert not out.done()
    assert not back.done()
    assert not host.planes[0].any()
    gate.set()
    back.wait()
    assert out.done()
    assert torch.equal(cache.planes[0][2], cache.planes[0][1])


def test_no_pair_is_a_finished_transfer(fastest) -> None:
    cache, host = filled(fastest, 4), fastest.allocate_host_kv_cache(filled(fastest, 2), 2)
    transfer = fastest.swap_blocks(cache, host, pairs())
    assert transfer.done()
    assert transfer.nbytes == 0
    fastest.copy_blocks(cache, pairs())
    fastest.zero_blocks(cache, np.zeros(0, np.int64))


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        (pairs((1, 9)), "destination block ids \\[9\\] are out of range"),
        (pairs((-1, 2)), "source block ids \\[-1\\] are out of range"),
        (pairs((1, 3), (2, 3)), "destination blocks \\[3\\] are given more than once"),
        (pairs((1, 3), (3, 2)), "both source and destination"),
    ],
)
def test_bad_pairs_are_refused_before_anything_moves(fastest, moves, message) -> None:
    cache = filled(fastest, 6)
    before = [plane.clone() for plane in cache.planes]
    with pytest.raises(ValueError, match=message):
        fastest.copy_blocks(cache, moves)
    assert all(map(torch.equal, before, cache.planes))


def test_caches_that_are_no_pair_are_refused(fastest) -> None:
    cache = filled(fastest, 6)
    with pytest.raises(ValueError, match="use copy_blocks"):
        fastest.swap_blocks(cache, cache, pairs((1, 2)))
    other = fastest.allocate_host_kv_cache(filled(fastest, 2, KVCacheSpec(3, 2, 16, 16, "bfloat16", 8)), 2)
    with pytest.raises(ValueError, match="the planes differ"):
        fastest.swap_blocks(cache, other, pairs((1, 1)))
    with pytest.raises(ValueError, match="block ids \\[7\\] are out of range"):
        fastest.zero_blocks(cache, np.array([7]))


def resident() -> int:
    with open("/proc/self/statm") as lines:  # noqa: PTH123  # a file of the kernel, read in one go
        return int(lines.read().split()[1]) * 4096


def test_a_pool_is_not_touched_before_it_is_used(fastest) -> None:
    before = resident()
    cache = fastest.allocate_kv_cache(KVCacheSpec(2, 8, 128, 128, "bfloat16", 32), 4096)
    assert cache.num_blocks * fastest.kv_block_nbytes(cache.spec) == 1 << 30
    assert resident() - before < 1 << 26


def test_a_pool_that_memory_cannot_back_is_refused(monkeypatch) -> None:
    gigabyte = 1 << 30
    monkeypatch.setattr(memory, "read_host_memory", lambda: HostMemory(total=4 * gigabyte, free=2 * gigabyte))
    backend = open_at(LEVELS[-1])
    spec = KVCacheSpec(2, 8, 128, 128, "bfloat16", 32)  # 256 KiB a block
    with pytest.raises(torch.OutOfMemoryError, match="2,147,483,648 of 4,294,967,296 bytes are free"):
        backend.allocate_kv_cache(spec, 8193)
    first = backend.allocate_kv_cache(spec, 8192)
    second = backend.allocate_host_kv_cache(first, 8192)
    with pytest.raises(torch.OutOfMemoryError, match="4,294,967,296 are promised to other pools"):
        backend.allocate_kv_cache(spec, 1)
    del first, second
    gc.collect()
    assert backend.allocate_kv_cache(spec, 8192).num_blocks == 8192
    with pytest.raises(ValueError, match="num_blocks=0"):
        backend.allocate_kv_cache(spec, 0)
    backend.close()


def test_address_space_that_cannot_be_had_is_the_same_error(monkeypatch) -> None:
    monkeypatch.setattr(memory, "read_host_memory", lambda: HostMemory(total=1 << 62, free=1 << 62))
    monkeypatch.setattr(memory, "_ADDRESSABLE", 1 << 62)
    backend = open_at(LEVELS[-1])
    with pytest.raises(torch.OutOfMemoryError, match="address space cannot be had"):
        backend.allocate_kv_cache(KVCacheSpec(1, 8, 128, 128, "bfloat16", 32), 1 << 34)
    backend.close()


def test_memory_is_accounted_for(fastest) -> None:
    fastest.reset_peak_memory()
    before = fastest.memory_snapshot()
    assert 0 < before.free <= before.total
    assert before.peak >= before.allocated > 0
    held = torch.ones(1 << 24)
    during = fastest.memory_snapshot()
    assert during.allocated - before.allocated > held.nbytes // 2
    assert during.peak >= during.allocated
    fastest.empty_cache()
    fastest.synchronize()


def test_host_buffers_are_zeroed_arrays(fastest) -> None:
    buffer = fastest.allocate_host_buffer((3, 5), "int32")
    assert buffer.shape == (3, 5)
    assert buffer.dtype == np.int32
    assert not buffer.any()
    with pytest.raises(ValueError, match="dtype 'nothing'"):
        fastest.allocate_host_buffer((1,), "nothing")


def test_a_closed_backend_says_so() -> None:
    backend = open_at(LEVELS[-1])
    backend.close()
    backend.close()
    with pytest.raises(BackendUnavailable, match="was closed"):
        backend.capabilities()
    with pytest.raises(BackendUnavailable, match="was closed"):
        backend.swap_blocks(None, None, pairs())
