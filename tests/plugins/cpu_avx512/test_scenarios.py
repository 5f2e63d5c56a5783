"""Traps that other projects fell into."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from baseboard.contract import AttentionSpec, KVCacheSpec, StepBatch
from baseboard.kit.batch_checks import check_batch
from core.backends.world import POISONS, Row, make_world


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_what_lies_in_other_slots_never_matters(backend, dtype, block_size) -> None:
    lengths = (1, block_size - 1, block_size, block_size + 1, 2 * block_size + 3)
    world = make_world([*(Row(1, n) for n in lengths), Row(3, 35)], dtype, (4, 2), 24, block_size, num_decodes=5)
    results = [world.run(backend, poison) for poison in POISONS]
    world.check(results[0])
    assert all(torch.equal(result, results[0]) for result in results)


def test_padded_rows_leave_real_ones_alone(backend) -> None:
    padded = make_world([Row(1, 9), *[Row(1, 1, padding=True)] * 31], num_decodes=32)
    bare = make_world([Row(1, 9)], num_decodes=1)
    bare.query, bare.key, bare.value = padded.query[:1], padded.key[:1], padded.value[:1]
    got = padded.run(backend, torch.nan, torch.full((32, 4, 16), torch.nan))
    assert torch.equal(got[:1], bare.run(backend, torch.nan))


@pytest.mark.parametrize("options", [{}, {"sinks": (0.5,) * 4}, {"sliding_window": 3}])
@pytest.mark.parametrize("causal", [True, False])
def test_rows_that_see_no_key_are_zeros(backend, options, causal) -> None:
    """Rows before their sequence's start, as graph padding makes them; under full attention only empty sequences."""
    spec = AttentionSpec(4, 2, 16, 0.25, **options)
    kv = KVCacheSpec(1, 2, 16, 16, "float32", 8)
    batch = StepBatch(
        query_start_loc=np.array([0, 1, 2, 5, 7], np.int32),
        seq_lens=np.array([3, 0, 2, 0], np.int32),
        block_tables=np.array([[1], [0], [2], [0]], np.int32),
        slot_mapping=np.array([10, 0, 0, 16, 17, 0, 0], np.int64),
        positions=np.array([2, 0, 0, 0, 1, 0, 0], np.int64),
        num_decodes=2,
        max_query_len=3,
        max_seq_len=3,
        causal=causal,
    )
    cache = backend.allocate_kv_cache(kv, 3)
    kernel = backend.attention_kernel(spec, kv)
    ones = torch.ones(7, 2, 16)
    earlier = replace(batch, slot_mapping=np.array([8, 9, 0, 0, 0, 0, 0], np.int64))
    kernel.write(ones, ones, cache.layer(0), backend.build_attention_metadata(earlier, cache))
    made = backend.build_attention_metadata(batch, cache)
    ones[batch.slot_mapping == 0] = torch.nan
    kernel.write(ones, ones, cache.layer(0), made)
    got = kernel.attend(torch.ones(7, 4, 16), cache.layer(0), made, torch.full((7, 4, 16), torch.nan))
    blind = [1, 2, 5, 6] if causal else [1, 5, 6]
    assert (got[blind] == 0).all()
    assert (got[[row for row in range(7) if row not in blind]] > 0).all()


def test_an_empty_batch_gives_nothing(backend) -> None:
    world = make_world([])
    cache = backend.allocate_kv_cache(world.kv, 2)
    kernel = backend.attention_kernel(world.spec, world.kv)
    made = backend.build_attention_metadata(world.batch(), cache)
    kernel.write(torch.zeros(0, 2, 16), torch.zeros(0, 2, 16), cache.layer(0), made)
    assert kernel.attend(torch.zeros(0, 4, 16), cache.layer(0), made).shape == (0, 4, 16)


@pytest.mark.parametrize("first", [0, 65_533, 131_068])
def test_offsets_beyond_four_gigabytes(fastest, first) -> None:
    """The same sequence at the start of a pool, across byte 2^31 and across element 2^31: bit-identical."""
    spec = AttentionSpec(8, 8, 128, 0.1)
    kv = KVCacheSpec(1, 8, 128, 128, "bfloat16", 16)
    cache = fastest.allocate_kv_cache(kv, 131_080)
    kernel = fastest.attention_kernel(spec, kv)
    generator = torch.Generator().manual_seed(1)
    key, value, query = (torch.randn(128, 8, 128, generator=generator).bfloat16() for _ in range(3))
    results = []
    for blocks in (np.arange(8, 16), np.arange(first, first + 8)):
        batch = StepBatch(
            query_start_loc=np.array([0, 128], np.int32),
            seq_lens=np.array([128], np.int32),
            block_tables=blocks[None].astype(np.int32),
            slot_mapping=(blocks[:, None] * 16 + np.arange(16)).ravel().astype(np.int64),
            positions=np.arange(128),
            num_decodes=0,
            max_query_len=128,
            max_seq_len=128,
        )
        check_batch(batch, cache.num_blocks, 16)
        made = fastest.build_attention_metadata(batch, cache)
        kernel.write(key, value, cache.layer(0), made)
        results.append(kernel.attend(query, cache.layer(0), made))
    assert torch.equal(*results)
    there = cache.planes[0][first : first + 8]
    host = fastest.allocate_host_kv_cache(cache, 8)
    pairs = np.stack((np.arange(first, first + 8), np.arange(8)), axis=1)
    fastest.swap_blocks(cache, host, pairs).wait()
    assert torch.equal(host.planes[0], there)
    assert there.any()


@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 14, 16, 32])
def test_every_head_ratio(fastest, ratio) -> None:
    contexts = (1, 15, 16, 17, 31, 33, 240, 241, 255, 256, 257, 513)
    rows = [Row(1, n) for n in contexts] + [Row(2, 17), Row(5, 241)]
    world = make_world(rows, "bfloat16", (ratio, 1), 16, 128, num_decodes=len(contexts))
    world.check(world.run(fastest, torch.nan))


def test_result_does_not_depend_on_the_block_size(backend) -> None:
    rows = [Row(1, 1024), Row(1, 300), Row(40, 999)]
    for block_size in (8, 16, 32, 64, 128, 256):
        world = make_world(rows, "float32", (2, 1), 64, block_size, num_decodes=2)
        result = world.run(backend, torch.nan)
        world.check(result)
        if block_size == 8:
            expected = result
        assert torch.allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("position", [0, 2, 3, 4, 9, 15, 16])
@pytest.mark.parametrize("path", ["prefill", "decode", "chunk"])
def test_a_window_of_four_sees_four_keys(fastest, position, path) -> None:
    """Keys are zero, so all weights are equal; value ``j`` is the unit vector ``j``: the output shows who is seen."""
    length = position + 1
    query_len = {"prefill": length, "decode": 1, "chunk": min(2, length)}[path]
    world = make_world(
        [Row(query_len, length)],
        heads=(2, 1),
        head_size=32,
        block_size=8,
        num_decodes=int(path == "decode"),
        sliding_window=4,
    )
    world.key[0].zero_()
    world.value[0] = torch.eye(32)[:length, None]
    got = world.run(fastest, torch.nan)[-1]
    seen = range(max(0, position - 3), position + 1)
    expected = torch.zeros(2, 32)
    expected[:, seen.start : seen.stop] = 1 / len(seen)
    assert torch.allclose(got, expected, rtol=0, atol=1e-6)
    assert ((got != 0) == (expected != 0)).all()


@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129])
def test_softcap_does_not_touch_what_is_masked(backend, length) -> None:
    world = make_world([Row(1, length), Row(min(63, length), length)], head_size=64, num_decodes=1, softcap=30.0)
    world.check(world.run(backend, torch.nan))


@pytest.mark.parametrize("chunks", [(16, 16, 8), (32, 8), (1, 39), (39, 1)])
@pytest.mark.parametrize("options", [{}, {"sliding_window": 5}])
def test_later_chunks_see_the_earlier_ones(backend, chunks, options) -> None:
    world = make_world([Row(40, 40)], "float32", **options)
    cache = world.poisoned_cache(backend, torch.nan)
    kernel = backend.attention_kernel(world.spec, world.kv)
    parts, done = [], 0
    for size in chunks:
        batch = replace(world.batch([Row(size, done + size)]), num_decodes=int(size == 1))
        made = backend.build_attention_metadata(batch, cache)
        new = slice(done, done + size)
        kernel.write(world.key[0][new], world.value[0][new], cache.layer(0), made)
        parts.append(kernel.attend(world.query[0][new], cache.layer(0), made))
        done += size
    world.check(torch.cat(parts))


@pytest.mark.parametrize("shape", [((9, 3), 96, 32), ((32, 8), 128, 16)])
def test_a_mixed_batch_of_uneven_sequences(fastest, shape) -> None:
    heads, head_size, block_size = shape
    rows = [Row(1, 300), Row(5, 5), Row(3, 16), Row(134, 1131), Row(345, 345)]
    world = make_world(rows, "bfloat16", heads, head_size, block_size, num_decodes=1)
    world.check(world.run(fastest, torch.nan))


def test_rows_of_a_wider_tensor(backend) -> None:
    """Queries, keys and values are slices of one projection; the output goes into a part of a wider one."""
    world = make_world([Row(1, 20), Row(7, 9)], num_decodes=1)
    expected = world.run(backend)
    for name in ("query", "key", "value"):
        wide = [torch.cat([x, torch.full_like(x, torch.nan)], -1)[..., : x.shape[-1]] for x in getattr(world, name)]
        setattr(world, name, wide)
    base = torch.full((8, 4, 40), torch.nan)
    assert torch.equal(world.run(backend, torch.nan, base[..., 8:24]), expected)
    assert torch.equal(base[..., 8:24], expected)
    assert base[..., :8].isnan().all()
    assert base[..., 24:].isnan().all()


def test_metadata_outlives_the_arrays_it_was_made_of(backend) -> None:
    world = make_world([Row(1, 20), Row(7, 9)], num_decodes=1)
    expected = world.run(backend)
    cache = world.poisoned_cache(backend, torch.nan)
    kernel = backend.attention_kernel(world.spec, world.kv)
    batch = world.batch()
    made = backend.build_attention_metadata(batch, cache)
    for name in ("query_start_loc", "seq_lens", "block_tables", "slot_mapping", "positions"):
        getattr(batch, name).fill(1)
    kernel.write(world._new(world.key), world._new(world.value), cache.layer(0), made)
    assert torch.equal(kernel.attend(torch.cat(world.query), cache.layer(0), made), expected)


def test_one_plan_serves_all_layers_of_a_kind(fastest) -> None:
    world = make_world([Row(1, 20), Row(7, 9)], num_decodes=1)
    cache = world.poisoned_cache(fastest, torch.nan)
    made = fastest.build_attention_metadata(world.batch(), cache)
    kinds = (world.spec, world.spec, replace(world.spec, sliding_window=3))
    kernels = [fastest.attention_kernel(spec, world.kv) for spec in kinds]
    plans = [made.plan(kernel._shape) for kernel in kernels]
    assert plans[0] is plans[1]
    assert plans[0] is not plans[2]
    assert len(plans[0]) == 4  # two sequences, two KV heads


def test_layers_are_apart(backend) -> None:
    world = make_world([Row(1, 4)], num_decodes=1)
    world.kv = replace(world.kv, num_layers=3)
    cache = world.poisoned_cache(backend, 0.0)
    kernel = backend.attention_kernel(world.spec, world.kv)
    made = backend.build_attention_metadata(world.batch(), cache)
    before = [plane.clone() for plane in cache.planes]
    kernel.write(world._new(world.key), world._new(world.value), cache.layer(1), made)
    changed = [not torch.equal(*pair) for pair in zip(before, cache.planes, strict=True)]
    assert changed == [False, True, False]
