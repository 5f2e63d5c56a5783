"""Faults that serving engines have had, each as a case."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from baseboard.backends.reference import attention, metadata
from baseboard.contract import AttentionSpec, KVCacheSpec, StepBatch
from core.backends.world import POISONS, Row, make_world


def test_padding_rows_write_only_into_the_null_block(backend) -> None:
    rows = [Row(1, 5), Row(1, 1, padding=True), Row(1, 1, padding=True), Row(3, 6)]
    world = make_world(rows, block_size=4, num_decodes=3)
    cache = world.poisoned_cache(backend, 1e4)
    before = [plane.clone() for plane in cache.planes]
    world.step(backend, cache)
    own = {*world.slots(0, 4, 5).tolist(), *world.slots(3, 3, 6).tolist()}
    others = [slot for slot in range(4, world.num_blocks * 4) if slot not in own]
    for plane, old in zip(cache.planes, before, strict=True):
        changed, unchanged = (x.view(world.num_blocks * 4, -1) for x in (plane, old))
        assert torch.equal(changed[others], unchanged[others])
        assert not any(torch.equal(changed[slot], unchanged[slot]) for slot in own)


def test_padded_rows_leave_real_ones_alone(backend) -> None:
    padded = make_world([Row(1, 9), *[Row(1, 1, padding=True)] * 31], num_decodes=32)
    bare = make_world([Row(1, 9)], num_decodes=1)
    bare.query, bare.key, bare.value = padded.query[:1], padded.key[:1], padded.value[:1]
    out = torch.full((32, 4, 16), torch.nan)
    got = padded.run(backend, torch.nan, out)
    assert torch.equal(got[:1], bare.run(backend, torch.nan))
    assert torch.equal(out[:1], got[:1])


@pytest.mark.parametrize("options", [{}, {"sinks": (0.5,) * 4}, {"sliding_window": 3}])
@pytest.mark.parametrize("causal", [True, False])
def test_rows_that_see_no_key_are_zeros(backend, options, causal) -> None:
    """Rows before their sequence's start, as graph padding makes them; under full attention only empty sequences."""
    spec = AttentionSpec(4, 2, 16, 0.25, **options)
    kv = KVCacheSpec(1, 2, 16, 16, "float32", 4)
    batch = StepBatch(
        query_start_loc=np.array([0, 1, 2, 5, 7], np.int32),
        seq_lens=np.array([3, 0, 2, 0], np.int32),
        block_tables=np.array([[1], [0], [2], [0]], np.int32),
        slot_mapping=np.array([6, 0, 0, 8, 9, 0, 0], np.int64),
        positions=np.array([2, 0, 0, 0, 1, 0, 0], np.int64),
        num_decodes=2,
        max_query_len=3,
        max_seq_len=3,
        causal=causal,
    )
    cache = backend.allocate_kv_cache(kv, 3)
    cache.layer(0).key.fill_(torch.nan)
    cache.layer(0).value.fill_(torch.nan)
    cache.layer(0).key[4:7], cache.layer(0).value[4:7] = 1.0, 1.0
    kernel = backend.attention_kernel(spec, kv)
    made = backend.build_attention_metadata(batch, cache)
    ones = torch.ones(7, 2, 16)
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


@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 14, 16, 32])
def test_every_head_ratio(backend, ratio) -> None:
    contexts = (1, 15, 16, 17, 31, 33, 240, 241, 255, 256, 257)
    rows = [Row(1, n) for n in contexts] + [Row(2, 17), Row(2, 256), Row(5, 16), Row(5, 241)]
    for block_size in (16, 128):
        world = make_world(rows, "bfloat16", (ratio, 1), 16, block_size, num_decodes=len(contexts))
        world.check(world.run(backend, torch.nan))


@pytest.mark.parametrize("heads", [(28, 4), (9, 3)])
def test_head_ratios_of_real_models(backend, heads) -> None:
    world = make_world([Row(1, 513), Row(1, 1025), Row(5, 511)], "float32", heads, 64, num_decodes=2)
    world.check(world.run(backend, torch.nan))


def test_result_does_not_depend_on_the_block_size(backend) -> None:
    results = []
    for block_size in (1, 8, 16, 32, 64, 128, 256):
        world = make_world([Row(1, 1024), Row(1, 300), Row(40, 999)], "float32", (2, 1), 64, block_size, num_decodes=2)
        results.append(world.run(backend, torch.nan))
    for result in results[1:]:
        assert torch.equal(result, results[0])
    world.check(results[0])


@pytest.mark.parametrize("heads", [8, 12])
@pytest.mark.parametrize("length", [1, 2, 17, 513])
def test_alibi_decode_equals_the_last_row_of_a_prefill(backend, heads, length) -> None:
    slopes = tuple(2.0 ** (-8 * (h + 1) / heads) for h in range(heads))
    prefill = make_world([Row(length, length)], "float32", (heads, heads), alibi_slopes=slopes)
    decode = make_world([Row(1, length)], "float32", (heads, heads), num_decodes=1, alibi_slopes=slopes)
    decode.query, decode.key, decode.value = [prefill.query[0][-1:]], prefill.key, prefill.value
    whole, last = prefill.run(backend), decode.run(backend)
    prefill.check(whole)
    decode.check(last)


@pytest.mark.parametrize("position", [0, 2, 3, 4, 9, 15, 16])
@pytest.mark.parametrize("path", ["prefill", "decode", "chunk"])
@pytest.mark.parametrize("options", [{}, {"softcap": 30.0}])
def test_a_window_of_four_sees_four_keys(backend, position, path, options) -> None:
    """Keys are zero, so all weights are equal; value ``j`` is the unit vector ``j``: the output shows who is seen."""
    length = position + 1
    query_len = {"prefill": length, "decode": 1, "chunk": min(2, length)}[path]
    world = make_world(
        [Row(query_len, length)],
        heads=(2, 1),
        head_size=32,
        block_size=4,
        num_decodes=int(path == "decode"),
        sliding_window=4,
        **options,
    )
    world.key[0].zero_()
    world.value[0] = torch.eye(32)[:length, None]
    got = world.run(backend, torch.nan)[-1]
    seen = range(max(0, position - 3), position + 1)
    expected = torch.zeros(2, 32)
    expected[:, seen.start : seen.stop] = 1 / len(seen)
    assert torch.allclose(got, expected, rtol=0, atol=1e-6)
    assert ((got != 0) == (expected != 0)).all()


@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129])
@pytest.mark.parametrize("query_len", [1, 63])
def test_softcap_does_not_touch_what_is_masked(backend, length, query_len) -> None:
    rows = [Row(min(query_len, length), length)]
    world = make_world(rows, "float32", head_size=64, num_decodes=int(rows[0].query_len == 1), softcap=30.0)
    world.check(world.run(backend, torch.nan))


@pytest.mark.parametrize("chunks", [(16, 16, 8), (32, 8), (1, 39), (39, 1)])
@pytest.mark.parametrize("options", [{}, {"sliding_window": 5}, {"softcap": 3.0}])
def test_later_chunks_see_the_earlier_ones(backend, chunks, options) -> None:
    world = make_world([Row(40, 40)], "float32", **options)
    whole = world.run(backend, torch.nan)
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
    world.check(whole)
    world.check(torch.cat(parts))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_is_the_same_alone_and_in_company(backend, dtype) -> None:
    world = make_world([Row(1, 33), *(Row(1, n) for n in (1, 70, 64, 5, 100, 2, 31))], dtype, (8, 2), num_decodes=8)
    alone = make_world([Row(1, 33)], dtype, (8, 2), num_decodes=1)
    alone.query, alone.key, alone.value = world.query[:1], world.key[:1], world.value[:1]
    alone.check(alone.run(backend))
    alone.check(world.run(backend)[:1])


def test_a_mixed_batch_of_uneven_sequences(backend) -> None:
    rows = [Row(1, 300), Row(5, 5), Row(3, 16), Row(134, 1131), Row(345, 345)]
    world = make_world(rows, "bfloat16", (9, 3), 96, 32, num_decodes=1)
    world.check(world.run(backend, torch.nan))


@pytest.mark.parametrize("options", [{}, {"sliding_window": 6}, {"sinks": (1.0, -1.0, 0.0, 2.0)}])
def test_bounds_on_memory_do_not_change_the_result(backend, monkeypatch, options) -> None:
    rows = [Row(1, n) for n in (5, 40, 3, 17, 40)] + [Row(20, 33), Row(33, 33)]
    world = make_world(rows, "float32", num_decodes=5, **options)
    monkeypatch.setattr(metadata, "_DECODE_KEYS", 64)
    monkeypatch.setattr(metadata, "_MASKED_PAIRS", 100)
    monkeypatch.setattr(attention, "_SCORES", 300)
    made = metadata.ReferenceMetadata(world.batch(), 16, torch.device("cpu"))
    assert [len(made.groups(window)) for window in (None, 6)] == [4 + 7 + 1, 1 + 7 + 11]
    for poison in POISONS:
        world.check(world.run(backend, poison))


def test_rows_of_a_wider_tensor(backend) -> None:
    """Queries, keys and values are slices of one projection; the output goes into a part of a wider one."""
    world = make_world([Row(1, 20), Row(7, 9)], num_decodes=1)
    expected = world.run(backend)
    for name in ("query", "key", "value"):
        wide = [torch.cat([x, torch.full_like(x, torch.nan)], -1)[..., : x.shape[-1]] for x in getattr(world, name)]
        setattr(world, name, wide)
    base = torch.full((8, 4, 40), torch.nan)
    got = world.run(backend, torch.nan, base[..., 8:24])
    assert torch.equal(got, expected)
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


def test_layers_are_apart(backend) -> None:
    world = make_world([Row(1, 4)], block_size=4, num_decodes=1)
    world.kv = replace(world.kv, num_layers=3)
    cache = world.poisoned_cache(backend, 0.0)
    kernel = backend.attention_kernel(world.spec, world.kv)
    made = backend.build_attention_metadata(world.batch(), cache)
    before = [plane.clone() for plane in cache.planes]
    kernel.write(world._new(world.key), world._new(world.value), cache.layer(1), made)
    changed = [not torch.equal(*pair) for pair in zip(before, cache.planes, strict=True)]
    assert changed == [False, False, True, True, False, False]
