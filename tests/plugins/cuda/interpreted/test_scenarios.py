"""Faults that serving engines have had in their kernels, each as a case."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from baseboard.contract import AttentionSpec, KVCacheSpec, StepBatch
from core.backends.world import Row, make_world
from plugins.cuda.interpreted.judging import check


def test_padding_rows_write_only_into_the_null_block(backend) -> None:
    rows = [Row(1, 5), Row(1, 1, padding=True), Row(1, 1, padding=True), Row(3, 6)]
    world = make_world(rows, block_size=4, num_decodes=3)
    cache = world.poisoned_cache(backend, 1e4)
    before = cache.pool.clone()
    world.step(backend, cache)
    changed = (cache.pool != before).view(world.num_blocks, 2, 4, -1).any(-1)  # [blocks, keys or values, slots]
    own = {*world.slots(0, 4, 5).tolist(), *world.slots(3, 3, 6).tolist()}
    slots = {int(block) * 4 + int(slot) for block, _, slot in changed.nonzero().tolist()}
    assert {slot for slot in slots if slot >= 4} == own


def test_padded_rows_leave_real_ones_alone(backend) -> None:
    padded = make_world([Row(1, 9), *[Row(1, 1, padding=True)] * 15], num_decodes=16)
    bare = make_world([Row(1, 9)], num_decodes=1)
    bare.query, bare.key, bare.value = padded.query[:1], padded.key[:1], padded.value[:1]
    out = torch.full((16, 4, 16), torch.nan)
    got = padded.run(backend, torch.nan, out)
    assert got is out
    check(bare, got[:1])


@pytest.mark.parametrize("options", [{}, {"sinks": (0.5,) * 4}, {"sliding_window": 3}])
@pytest.mark.parametrize("causal", [True, False])
def test_rows_that_see_no_key_are_zeros(backend, options, causal) -> None:
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
    values = cache.layer(0).data.view(3, 2, 4, 32)
    values.fill_(torch.nan)
    values[1, :, :3] = 1.0
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


def test_block_tables_are_not_read_beyond_what_is_used(backend) -> None:
    """Entries after the used ones are ids that no pool has; the interpreter would fault on them."""
    world = make_world([Row(1, 17), Row(1, 5), Row(4, 9)], block_size=8, num_decodes=2)
    batch = world.batch()
    tables = batch.block_tables.copy()
    for row, table in enumerate(world.tables):
        tables[row, len(table) :] = 2**31 - 1
    cache = world.poisoned_cache(backend, torch.nan)
    kernel = backend.attention_kernel(world.spec, world.kv)
    made = backend.build_attention_metadata(replace(batch, block_tables=tables), cache)
    kernel.write(world._new(world.key), world._new(world.value), cache.layer(0), made)
    check(world, kernel.attend(torch.cat(world.query), cache.layer(0), made))


@pytest.mark.parametrize("place", [1, 33_000, 70_000])
def test_offsets_are_64_bit(backend, place) -> None:
    """4.6 GB of address space of which few pages are touched; places beyond 2^31 bytes and beyond 2^31 elements."""
    spec = AttentionSpec(4, 4, 128, 128**-0.5)
    kv = KVCacheSpec(1, 4, 128, 128, "float16", 32)
    cache = backend.allocate_kv_cache(kv, 70_100)
    assert cache.layer(0).data.numel() > 2**31
    world = make_world([Row(2, 40)], "float16", (4, 4), 128, 32)
    world.tables = [np.array([place + 7, place], np.int32)]
    kernel = backend.attention_kernel(spec, kv)
    batch = _batch(world, Row(40, 40))
    made = backend.build_attention_metadata(batch, cache)
    kernel.write(world.key[0], world.value[0], cache.layer(0), made)
    written = cache.layer(0).data[place, : 8 * 512].view(8, 4, 128)
    assert torch.equal(written, world.key[0][32:])
    made = backend.build_attention_metadata(_batch(world, Row(2, 40)), cache)
    check(world, kernel.attend(world.query[0], cache.layer(0), made))
    backend.copy_blocks(cache, np.array([[place, place + 20]]))
    assert torch.equal(cache.layer(0).data[place + 20], cache.layer(0).data[place])
    backend.zero_blocks(cache, np.array([place]))
    assert not cache.layer(0).data[place].any()
    assert cache.layer(0).data[place + 20].any()


def _batch(world, row: Row) -> StepBatch:
    span = (row.seq_len - row.query_len, row.seq_len)
    return StepBatch(
        query_start_loc=np.array([0, row.query_len], np.int32),
        seq_lens=np.array([row.seq_len], np.int32),
        block_tables=world.tables[0][None],
        slot_mapping=world.slots(0, *span),
        positions=np.arange(*span),
        num_decodes=0,
        max_query_len=row.query_len,
        max_seq_len=row.seq_len,
    )


def test_result_does_not_depend_on_the_block_size(backend) -> None:
    results = []
    for block_size in (1, 8, 16, 128, 256):
        world = make_world([Row(1, 300), Row(20, 99)], "float32", (2, 1), 16, block_size, num_decodes=1)
        results.append(world.run(backend, torch.nan))
    for result in results[1:]:
        assert torch.equal(result, results[0])
    check(world, results[0])


@pytest.mark.parametrize("length", [1, 2, 17, 60])
def test_alibi_decode_equals_the_last_row_of_a_prefill(backend, length) -> None:
    slopes = tuple(2.0 ** (-8 * (h + 1) / 12) for h in range(12))
    prefill = make_world([Row(length, length)], "float32", (12, 12), alibi_slopes=slopes)
    decode = make_world([Row(1, length)], "float32", (12, 12), num_decodes=1, alibi_slopes=slopes)
    decode.query, decode.key, decode.value = [prefill.query[0][-1:]], prefill.key, prefill.value
    whole, last = prefill.run(backend), decode.run(backend)
    check(prefill, whole)
    check(decode, last)


@pytest.mark.parametrize("position", [0, 3, 4, 15, 16])
@pytest.mark.parametrize("path", ["prefill", "decode", "chunk"])
def test_a_window_of_four_sees_four_keys(backend, position, path) -> None:
    """Keys are zero, so all weights are equal; value ``j`` is the unit vector ``j``: the output shows who is seen."""
    length = position + 1
    query_len = {"prefill": length, "decode": 1, "chunk": min(2, length)}[path]
    rows = [Row(query_len, length)]
    world = make_world(
        rows, heads=(2, 1), head_size=32, block_size=4, num_decodes=int(path == "decode"), sliding_window=4
    )
    world.key[0].zero_()
    world.value[0] = torch.eye(32)[:length, None]
    got = world.run(backend, torch.nan)[-1]
    seen = range(max(0, position - 3), position + 1)
    expected = torch.zeros(2, 32)
    expected[:, seen.start : seen.stop] = 1 / len(seen)
    assert torch.allclose(got, expected, rtol=0, atol=1e-6)
    assert ((got != 0) == (expected != 0)).all()


@pytest.mark.parametrize("length", [1, 15, 16, 17, 33])
@pytest.mark.parametrize("query_len", [1, 16])
def test_softcap_does_not_touch_what_is_masked(backend, length, query_len) -> None:
    """Lengths around the tiles' edges: 16 keys each."""
    rows = [Row(min(query_len, length), length)]
    world = make_world(rows, "float32", num_decodes=int(rows[0].query_len == 1), softcap=30.0)
    check(world, world.run(backend, torch.nan))


@pytest.mark.parametrize("chunks", [(16, 16, 8), (1, 39), (39, 1)])
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
    check(world, torch.cat(parts))


def test_a_one_token_chunk_among_the_prefills(backend) -> None:
    """Queries of lengths [1, 1, 1, 17, 1]: only the first two are said to be decodes."""
    rows = [Row(1, 20), Row(1, 5), Row(1, 33), Row(17, 20), Row(1, 1)]
    world = make_world(rows, "float32", (6, 2), num_decodes=2)
    check(world, world.run(backend, torch.nan))


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
    assert [not torch.equal(*pair) for pair in zip(before, cache.planes, strict=True)] == [False, True, False]
