"""The backend's hooks, beside attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pluggy
import pytest
import torch

import baseboard_cuda
from baseboard.contract import (
    API_VERSION,
    PROJECT,
    AttentionSpec,
    BackendHooks,
    BackendUnavailable,
    KVCacheSpec,
    Unsupported,
)
from baseboard_cuda.opening import check_compiler_cache

KV = KVCacheSpec(3, 2, 16, 24, "float16", 8)
ATTENTION = AttentionSpec(4, 2, 16, 0.25)


def filled(backend, num_blocks=7):
    cache = backend.allocate_kv_cache(KV, num_blocks)
    cache.pool.copy_(torch.randint(0, 256, cache.pool.shape, dtype=torch.uint8))
    return cache


def pairs_of(*pairs) -> np.ndarray:
    return np.array(pairs, np.int64).reshape(-1, 2)


def test_it_is_a_backend_as_the_contract_wants_it(backend) -> None:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(BackendHooks)
    manager.register(backend)
    manager.check_pending()
    assert baseboard_cuda.contract_version() == API_VERSION
    assert manager.hook.capabilities() == backend.capabilities()
    assert backend.torch_device() == torch.device("cpu")


def test_what_is_not_declared_is_refused(backend) -> None:
    changed = [
        ({"dtype": "bfloat16"}, {}, "dtype 'bfloat16'"),
        ({"kv_dtype": "int8"}, {}, "KV dtype 'int8'"),
        ({"block_size": 24}, {}, "block size 24"),
        ({"head_size": 513}, {"head_size": 513}, "head size 513"),
        ({"head_size_v": 0}, {}, "value head size 0"),
        ({"num_layers": 0}, {}, "0 layers"),
        ({"num_kv_heads": 1}, {}, "its cache has 1"),
        ({"head_size": 8}, {}, "its cache has 8"),
        ({"sliding_window": 8}, {}, "its cache keeps 8"),
        ({}, {"num_heads": 5}, "5 query heads"),
        ({}, {"scale": float("nan")}, "scale nan"),
        ({}, {"softcap": 0.0}, "softcap 0.0"),
        ({}, {"sliding_window": 0}, "sliding window 0"),
        ({}, {"sinks": (1.0,)}, "1 sinks for 4"),
        ({}, {"alibi_slopes": (1.0, 2.0, float("inf"), 1.0)}, "ALiBi slopes must be finite"),
    ]
    assert backend.unsupported(KV, ATTENTION) == []
    for kv, attention, words in changed:
        reasons = backend.unsupported(replace(KV, **kv), replace(ATTENTION, **attention))
        assert any(words in reason for reason in reasons), (words, reasons)
        with pytest.raises(Unsupported):
            backend.attention_kernel(replace(ATTENTION, **attention), replace(KV, **kv))


def test_allocation(backend) -> None:
    cache = backend.allocate_kv_cache(KV, 5)
    block = 16 * 16 * 2 + 16 * 24 * 2  # 8 tokens of 2 heads: keys of 16 and values of 24 numbers of 2 bytes
    assert backend.kv_block_nbytes(KV) == 3 * block
    assert [plane.shape for plane in cache.planes] == [(5, block)] * 3
    assert all(plane.is_contiguous() and not plane.any() for plane in cache.planes)
    host = backend.allocate_host_kv_cache(cache, 2)
    assert [plane.shape for plane in host.planes] == [(2, block)] * 3
    with pytest.raises(ValueError, match="num_blocks=0"):
        backend.allocate_kv_cache(KV, 0)
    with pytest.raises(torch.OutOfMemoryError):
        backend.allocate_kv_cache(KV, 10**12)


def test_blocks_are_copied_in_all_layers(backend) -> None:
    cache = filled(backend)
    before = cache.pool.clone()
    backend.copy_blocks(cache, pairs_of((1, 5), (1, 6), (2, 3)))
    before[:, [5, 6, 3]] = before[:, [1, 1, 2]]
    assert torch.equal(cache.pool, before)
    backend.copy_blocks(cache, pairs_of())
    assert torch.equal(cache.pool, before)


@pytest.mark.parametrize("pairs", [((1, 2), (2, 3)), ((1, 2), (3, 2)), ((7, 1),), ((1, -1),), ((4, 4),)])
def test_lists_without_a_meaning_copy_nothing(backend, pairs) -> None:
    cache = filled(backend)
    before = cache.pool.clone()
    with pytest.raises(ValueError, match="block"):
        backend.copy_blocks(cache, pairs_of(*pairs))
    assert torch.equal(cache.pool, before)


def test_blocks_are_wiped_in_all_layers(backend) -> None:
    cache = filled(backend)
    before = cache.pool.clone()
    backend.zero_blocks(cache, np.array([2, 6]))
    before[:, [2, 6]] = 0
    assert torch.equal(cache.pool, before)
    with pytest.raises(ValueError, match="out of range"):
        backend.zero_blocks(cache, np.array([1, 7]))
    assert torch.equal(cache.pool, before)


def test_a_swap_there_and_back(backend) -> None:
    cache = filled(backend)
    host = backend.allocate_host_kv_cache(cache, 4)
    before = cache.pool.clone()
    backend.swap_blocks(cache, host, pairs_of((5, 0), (6, 1), (2, 3))).wait()
    backend.zero_blocks(cache, np.array([5, 6, 2]))
    transfer = backend.swap_blocks(host, cache, pairs_of((0, 1), (1, 2), (3, 5)))
    transfer.wait_on_stream()
    assert transfer.nbytes == 3 * backend.kv_block_nbytes(KV)
    before[:, 6] = 0
    before[:, [1, 2, 5]] = before[:, [5, 6, 2]].clone() * 0 + host.pool[:, [0, 1, 3]]
    assert torch.equal(cache.pool, before)


def test_another_backends_cache_is_refused(backend) -> None:
    from baseboard.kit.planar import PlanarKVCache

    foreign = PlanarKVCache(KV, (torch.zeros(4, 8, dtype=torch.uint8),), ())
    with pytest.raises(ValueError, match="cache is a PlanarKVCache"):
        backend.copy_blocks(foreign, pairs_of((1, 2)))


def test_host_buffers(backend) -> None:
    buffer = backend.allocate_host_buffer((3, 5), "int32")
    assert buffer.shape == (3, 5)
    assert buffer.dtype == np.int32
    assert buffer.flags.c_contiguous
    assert not buffer.any()
    with pytest.raises(ValueError, match="'integer32'"):
        backend.allocate_host_buffer((1,), "integer32")


def test_memory(backend) -> None:
    backend.reset_peak_memory()
    backend.empty_cache()
    seen = backend.memory_snapshot()
    assert seen.peak >= seen.allocated > 0
    assert seen.total >= seen.free > 0
    backend.synchronize()


def test_a_closed_backend_says_so(interpreter) -> None:
    backend = baseboard_cuda.open_backend(interpreter, {})
    backend.close()
    backend.close()
    for action in (backend.capabilities, backend.memory_snapshot, lambda: backend.operator_kernel("rms_norm", {})):
        with pytest.raises(BackendUnavailable, match="closed"):
            action()


def test_a_compiler_cache_that_cannot_be_written(tmp_path) -> None:
    check_compiler_cache(tmp_path / "made" / "later")
    (tmp_path / "file").touch()
    with pytest.raises(BackendUnavailable, match="set TRITON_CACHE_DIR"):
        check_compiler_cache(tmp_path / "file" / "cache")
