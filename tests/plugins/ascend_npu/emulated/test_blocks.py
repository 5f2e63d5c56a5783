"""Copies, swaps and wipes of blocks: bit by bit, in order, refused with nothing enqueued."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from baseboard.contract import KVCache, KVCacheSpec
from baseboard_ascend_npu.backend import AscendBackend
from baseboard_ascend_npu.swapping import Runs
from baseboard_ascend_standin.library import StandIn
from plugins.ascend_npu.emulated.opened import open_backend

SPEC = KVCacheSpec(num_layers=2, num_kv_heads=2, head_size=32, head_size_v=16, dtype="bfloat16", block_size=16)


def pairs(*given: tuple[int, int]) -> Any:
    return np.array(given, dtype=np.int64).reshape(-1, 2)


def fill(cache: KVCache, seed: int) -> list[torch.Tensor]:
    """Random bytes in every plane; the bytes."""
    generator = torch.Generator().manual_seed(seed)
    contents = []
    for plane in cache.planes:
        contents.append(torch.randint(256, plane.shape, dtype=torch.uint8, generator=generator))
        plane.copy_(contents[-1])
    return contents


def read(cache: KVCache) -> list[torch.Tensor]:
    return [plane.cpu().clone() for plane in cache.planes]


@contextmanager
def way(standin: StandIn, batched: bool, late: bool) -> Iterator[None]:
    with ExitStack() as stack:
        if not batched:
            stack.enter_context(standin.without_batched_copies())
        if late:
            stack.enter_context(standin.late())
        yield


def test_planes_are_what_a_block_takes(backend: AscendBackend) -> None:
    cache = backend.allocate_kv_cache(SPEC, 3)
    assert backend.kv_block_nbytes(SPEC) == sum(plane.shape[1] for plane in cache.planes) == 2 * 2 * 16 * 2 * (32 + 16)
    host = backend.allocate_host_kv_cache(cache, 5)
    assert [plane.shape for plane in host.planes] == [(5, plane.shape[1]) for plane in cache.planes]
    assert all(plane.is_pinned() for plane in host.planes)
    assert not any(plane.any() for plane in (*cache.planes, *host.planes))


def test_copy(backend: AscendBackend) -> None:
    cache = backend.allocate_kv_cache(SPEC, 6)
    before = fill(cache, 0)
    backend.copy_blocks(cache, pairs((1, 4), (2, 5), (1, 3)))
    for plane, old in zip(read(cache), before, strict=True):
        assert torch.equal(plane, old[[0, 1, 2, 1, 1, 2]])


def test_zero(backend: AscendBackend) -> None:
    cache = backend.allocate_kv_cache(SPEC, 4)
    before = fill(cache, 1)
    backend.zero_blocks(cache, np.array([3, 1]))
    for plane, old in zip(read(cache), before, strict=True):
        assert not plane[[1, 3]].any()
        assert torch.equal(plane[[0, 2]], old[[0, 2]])


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("batched", [True, False])
def test_swap_out_and_in(standin: StandIn, batched: bool, late: bool) -> None:
    with way(standin, batched, late):
        backend = open_backend()
        cache = backend.allocate_kv_cache(SPEC, 8)
        host = backend.allocate_host_kv_cache(cache, 8)
        before = fill(cache, 2)
        out = backend.swap_blocks(cache, host, pairs((1, 0), (2, 1), (3, 2), (6, 7), (7, 5)))
        assert out.nbytes == 5 * backend.kv_block_nbytes(SPEC)
        out.wait()
        assert out.done()
        for plane, old in zip(host.planes, before, strict=True):
            assert torch.equal(plane[[0, 1, 2, 7, 5]], old[[1, 2, 3, 6, 7]])
            assert not plane[[3, 4, 6]].any()
        fill(cache, 3)
        back = backend.swap_blocks(host, cache, pairs((0, 5), (1, 6), (7, 1)))
        back.wait_on_stream()
        for plane, old in zip(read(cache), before, strict=True):
            assert torch.equal(plane[[5, 6, 1]], old[[1, 2, 6]])
        backend.close()


def test_one_batch_for_all_planes_and_runs(backend: AscendBackend, standin: StandIn) -> None:
    cache = backend.allocate_kv_cache(SPEC, 20)
    host = backend.allocate_host_kv_cache(cache, 20)
    batches, singles = standin.calls("aclrtMemcpyBatchAsync"), standin.calls("aclrtMemcpyAsync")
    backend.swap_blocks(cache, host, pairs(*[(i, i + 3) for i in range(1, 9)], (12, 1))).wait()
    assert standin.calls("aclrtMemcpyBatchAsync") == batches + 1
    assert standin.calls("aclrtMemcpyAsync") == singles


def test_runs_are_blocks_that_follow_each_other_on_both_sides() -> None:
    runs = Runs.of(pairs((5, 9), (1, 4), (2, 5), (3, 7), (6, 10)))
    assert runs.sources.tolist() == [1, 3, 5]
    assert runs.destinations.tolist() == [4, 7, 9]
    assert runs.lengths.tolist() == [2, 1, 2]


def test_long_lists_go_in_several_batches(
    backend: AscendBackend, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baseboard_ascend_npu.acl_copy.MAX_BATCHED_COPIES", 3)
    cache = backend.allocate_kv_cache(SPEC, 8)
    host = backend.allocate_host_kv_cache(cache, 8)
    before, batches = fill(cache, 4), standin.calls("aclrtMemcpyBatchAsync")
    backend.swap_blocks(cache, host, pairs((1, 1), (3, 3), (5, 5))).wait()
    assert standin.calls("aclrtMemcpyBatchAsync") == batches + 4  # 3 runs in 4 planes
    for plane, old in zip(host.planes, before, strict=True):
        assert torch.equal(plane[[1, 3, 5]], old[[1, 3, 5]])


def test_a_swap_holds_its_caches(backend: AscendBackend, standin: StandIn) -> None:
    """A transfer under way writes to memory that nobody else may be given."""
    cache = backend.allocate_kv_cache(SPEC, 4)
    host = backend.allocate_host_kv_cache(cache, 4)
    before = fill(cache, 5)
    with standin.late():
        transfer = backend.swap_blocks(cache, host, pairs((1, 1)))
        del cache
        other = backend.allocate_kv_cache(SPEC, 4)
        fill(other, 6)
        transfer.wait()
    for plane, old in zip(host.planes, before, strict=True):
        assert torch.equal(plane[1], old[1])


def test_empty_lists(backend: AscendBackend, standin: StandIn) -> None:
    cache = backend.allocate_kv_cache(SPEC, 2)
    host = backend.allocate_host_kv_cache(cache, 2)
    before = fill(cache, 7)
    transfer = backend.swap_blocks(cache, host, pairs())
    transfer.wait_on_stream()
    assert (transfer.nbytes, transfer.done()) == (0, True)
    backend.copy_blocks(cache, pairs())
    backend.zero_blocks(cache, np.zeros(0, np.int64))
    assert all(torch.equal(plane, old) for plane, old in zip(read(cache), before, strict=True))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (pairs((1, 2), (9, 3)), "source block ids \\[9\\]"),
        (pairs((1, -1)), "destination block ids \\[-1\\]"),
        (pairs((1, 2), (3, 2)), "more than once"),
        (np.array([[1.0, 2.0]]), "must be integers"),
    ],
)
def test_wrong_lists_are_refused_with_nothing_enqueued(backend: AscendBackend, given: Any, message: str) -> None:
    cache = backend.allocate_kv_cache(SPEC, 4)
    host = backend.allocate_host_kv_cache(cache, 4)
    before = fill(cache, 8)
    with pytest.raises(ValueError, match=message):
        backend.swap_blocks(cache, host, given)
    with pytest.raises(ValueError, match=message):
        backend.copy_blocks(cache, given)
    assert all(torch.equal(plane, old) for plane, old in zip(read(cache), before, strict=True))
    assert not any(plane.any() for plane in host.planes)


def test_chains_are_refused(backend: AscendBackend) -> None:
    with pytest.raises(ValueError, match="both source and destination"):
        backend.copy_blocks(backend.allocate_kv_cache(SPEC, 8), pairs((5, 6), (6, 7)))


def test_caches_that_are_no_pair(backend: AscendBackend) -> None:
    cache = backend.allocate_kv_cache(SPEC, 2)
    with pytest.raises(ValueError, match="between the NPU and the host"):
        backend.swap_blocks(cache, backend.allocate_kv_cache(SPEC, 2), pairs((1, 1)))
    other = backend.allocate_kv_cache(KVCacheSpec(2, 2, 32, 32, "bfloat16", 16), 2)
    with pytest.raises(ValueError, match="planes differ"):
        backend.swap_blocks(cache, backend.allocate_host_kv_cache(other, 2), pairs((1, 1)))
