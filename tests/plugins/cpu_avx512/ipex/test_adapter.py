"""What IPEX's kernels are asked to do comes out as the contract wants it."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, product

import numpy as np
import pytest
import torch

from baseboard.contract import AttentionSpec, KVCacheSpec, StepBatch, Unsupported
from core.backends.world import POISONS, Row, make_world

DTYPES = ("float32", "bfloat16", "float16")
SHAPES = tuple(product((8, 24, 64, 80, 128, 256), (8, 16, 32, 64, 128)))
HEADS = ((2, 2), (4, 2), (3, 1), (9, 3), (8, 1), (14, 2), (32, 1))
FEATURES = {
    "plain": {},
    "window": {"sliding_window": 7},
    "softcap": {"softcap": 2.0},
    "both": {"sliding_window": 9, "softcap": 1.5},
    "itself": {"sliding_window": 1},
}


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mixed_batch_equals_the_oracle(ipex, dtype, feature) -> None:
    start = 7 * DTYPES.index(dtype) + 2 * list(FEATURES).index(feature)
    shapes = [SHAPES[(start + step) % len(SHAPES)] for step in range(0, len(SHAPES), 7)]
    for (head_size, size), heads, poison in zip(shapes, cycle(HEADS), cycle(POISONS)):
        edges = (1, size - 1, size, size + 1, 2 * size + 3)
        rows = [Row(1, n) for n in edges] + [Row(size, size), Row(5, 2 * size + 1), Row(21, size + 39), Row(1, size)]
        world = make_world(rows, dtype, heads, head_size, size, num_decodes=5, seed=start, **FEATURES[feature])
        world.check(world.run(ipex, poison))


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("sequences", [3, 4, 40])
def test_sequences_may_share_their_first_blocks(ipex, sequences, feature) -> None:
    rows = [Row(1, 33 + 3 * n) for n in range(sequences)]
    world = make_world(rows, heads=(8, 2), num_decodes=sequences, shared_blocks=2, **FEATURES[feature])
    world.check(world.run(ipex, torch.nan))


def test_padded_rows_leave_real_ones_alone(ipex) -> None:
    """All of them have the null block for their first."""
    world = make_world([Row(1, 9), Row(1, 40), *[Row(1, 1, padding=True)] * 30], num_decodes=32)
    world.check(world.run(ipex, torch.nan, torch.full((32, 4, 16), torch.nan)))


@pytest.mark.parametrize("position", [0, 2, 3, 4, 9, 15, 16])
@pytest.mark.parametrize("path", ["prefill", "decode", "chunk"])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_a_window_of_four_sees_four_keys(ipex, position, path, softcap) -> None:
    """Keys are zero, so all weights are equal; value ``j`` is the unit vector ``j``: the output shows who is seen."""
    length = position + 1
    query_len = {"prefill": length, "decode": 1, "chunk": min(2, length)}[path]
    rows, decodes = [Row(query_len, length)], int(path == "decode")
    options = {"sliding_window": 4, "softcap": softcap}
    world = make_world(rows, heads=(2, 1), head_size=32, block_size=8, num_decodes=decodes, **options)
    world.key[0].zero_()
    world.value[0] = torch.eye(32)[:length, None]
    got = world.run(ipex, torch.nan)[-1]
    seen = range(max(0, position - 3), position + 1)
    expected = torch.zeros(2, 32)
    expected[:, seen.start : seen.stop] = 1 / len(seen)
    assert torch.allclose(got, expected, rtol=0, atol=1e-6)
    assert ((got != 0) == (expected != 0)).all()


@pytest.mark.parametrize("window", [1, 1000, 2**31])
def test_windows_of_one_key_and_of_more_than_there_are(ipex, window) -> None:
    world = make_world([Row(1, 20), Row(1, 3), Row(7, 30)], num_decodes=2, sliding_window=window)
    world.check(world.run(ipex, torch.nan))


def test_a_window_that_64_bits_do_not_hold_is_none(ipex) -> None:
    world = make_world([Row(1, 20), Row(1, 3), Row(7, 30)], num_decodes=2)
    expected = world.run(ipex)
    world.spec = replace(world.spec, sliding_window=2**70)
    assert torch.equal(world.run(ipex), expected)


@pytest.mark.parametrize("feature", FEATURES)
def test_rows_that_see_no_key_are_zeros(ipex, feature) -> None:
    """Rows before their sequence's start, and all of an empty sequence."""
    spec = AttentionSpec(4, 2, 16, 0.25, **FEATURES[feature])
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
    )
    cache = ipex.allocate_kv_cache(kv, 3)
    kernel = ipex.attention_kernel(spec, kv)
    ones = torch.ones(7, 2, 16)
    earlier = replace(batch, slot_mapping=np.array([8, 9, 0, 0, 0, 0, 0], np.int64))
    kernel.write(ones, ones, cache.layer(0), ipex.build_attention_metadata(earlier, cache))
    made = ipex.build_attention_metadata(batch, cache)
    kernel.write(ones, ones, cache.layer(0), made)
    got = kernel.attend(torch.ones(7, 4, 16), cache.layer(0), made, torch.full((7, 4, 16), torch.nan))
    assert (got[[1, 2, 5, 6]] == 0).all()
    assert torch.allclose(got[[0, 3, 4]], torch.ones(3, 4, 16))


def test_an_empty_batch_gives_nothing(ipex) -> None:
    world = make_world([])
    cache = ipex.allocate_kv_cache(world.kv, 2)
    kernel = ipex.attention_kernel(world.spec, world.kv)
    made = ipex.build_attention_metadata(world.batch(), cache)
    kernel.write(torch.zeros(0, 2, 16), torch.zeros(0, 2, 16), cache.layer(0), made)
    assert kernel.attend(torch.zeros(0, 4, 16), cache.layer(0), made).shape == (0, 4, 16)


@pytest.mark.parametrize("chunks", [(16, 16, 8), (1, 39), (39, 1)])
@pytest.mark.parametrize("feature", FEATURES)
def test_later_chunks_see_the_earlier_ones(ipex, chunks, feature) -> None:
    world = make_world([Row(40, 40)], **FEATURES[feature])
    cache = world.poisoned_cache(ipex, torch.nan)
    kernel = ipex.attention_kernel(world.spec, world.kv)
    parts, done = [], 0
    for size in chunks:
        batch = replace(world.batch([Row(size, done + size)]), num_decodes=int(size == 1))
        made = ipex.build_attention_metadata(batch, cache)
        new = slice(done, done + size)
        kernel.write(world.key[0][new], world.value[0][new], cache.layer(0), made)
        parts.append(kernel.attend(world.query[0][new], cache.layer(0), made))
        done += size
    world.check(torch.cat(parts))


@pytest.mark.parametrize("feature", FEATURES)
def test_rows_of_a_wider_tensor(ipex, feature) -> None:
    """Queries, keys and values are slices of one projection; the output goes into a part of a wider one."""
    world = make_world([Row(1, 20), Row(7, 9)], num_decodes=1, **FEATURES[feature])
    expected = world.run(ipex)
    for name in ("query", "key", "value"):
        wide = [torch.cat([x, torch.full_like(x, torch.nan)], -1)[..., : x.shape[-1]] for x in getattr(world, name)]
        setattr(world, name, wide)
    world.check(world.run(ipex, torch.nan))
    base = torch.full((8, 4, 40), torch.nan)
    query = torch.full((8, 4, 40), torch.nan)
    query[..., 16:32] = torch.cat(world.query)
    cache = world.poisoned_cache(ipex, torch.nan)
    kernel = ipex.attention_kernel(world.spec, world.kv)
    made = ipex.build_attention_metadata(world.batch(), cache)
    key, value = (torch.cat([world._new(x), torch.ones(8, 2, 8)], -1)[..., :16] for x in (world.key, world.value))
    kernel.write(key, value, cache.layer(0), made)
    assert torch.equal(kernel.attend(query[..., 16:32], cache.layer(0), made, base[..., 8:24]), expected)
    assert torch.equal(base[..., 8:24], expected)
    assert base[..., :8].isnan().all()
    assert base[..., 24:].isnan().all()


def test_metadata_outlives_the_arrays_it_was_made_of(ipex) -> None:
    """Also those parts of it that are made by the first layer that asks for them."""
    for options in FEATURES.values():
        world = make_world([Row(1, 20), Row(7, 9)], num_decodes=1, **options)
        expected = world.run(ipex)
        cache = world.poisoned_cache(ipex, torch.nan)
        kernel = ipex.attention_kernel(world.spec, world.kv)
        batch = world.batch()
        made = ipex.build_attention_metadata(batch, cache)
        for name in ("query_start_loc", "seq_lens", "block_tables", "slot_mapping", "positions"):
            getattr(batch, name).fill(1)
        kernel.write(world._new(world.key), world._new(world.value), cache.layer(0), made)
        assert torch.equal(kernel.attend(torch.cat(world.query), cache.layer(0), made), expected)


def test_layers_are_apart_and_keys_from_values(ipex) -> None:
    world = make_world([Row(1, 4)], num_decodes=1)
    world.kv = replace(world.kv, num_layers=3)
    cache = world.poisoned_cache(ipex, 0.0)
    kernel = ipex.attention_kernel(world.spec, world.kv)
    made = ipex.build_attention_metadata(world.batch(), cache)
    before = [plane.clone() for plane in cache.planes]
    kernel.write(world._new(world.key), world._new(world.value), cache.layer(1), made)
    changed = [not torch.equal(*pair) for pair in zip(before, cache.planes, strict=True)]
    assert changed == [False, False, True, True, False, False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_is_heads_of_tokens(ipex, dtype) -> None:
    """Sizes are exact, and what was written lies at ``[block, KV head, offset]`` of its plane."""
    world = make_world([Row(20, 20)], dtype, (6, 3), 24, 16)
    cache = world.poisoned_cache(ipex, 0.0)
    assert ipex.kv_block_nbytes(world.kv) == sum(plane.shape[1] for plane in cache.planes)
    assert ipex.kv_block_nbytes(world.kv) == 2 * 3 * 16 * 24 * world.key[0].element_size()
    kernel = ipex.attention_kernel(world.spec, world.kv)
    kernel.write(world.key[0], world.value[0], cache.layer(0), ipex.build_attention_metadata(world.batch(), cache))
    for plane, rows in zip(cache.planes, (world.key[0], world.value[0]), strict=True):
        blocks = plane.view(rows.dtype).view(world.num_blocks, 3, 16, 24)
        first, second = world.tables[0]
        assert torch.equal(blocks[first].transpose(0, 1), rows[:16])
        assert torch.equal(blocks[second, :, :4].transpose(0, 1), rows[16:])
        assert (blocks[second, :, 4:] == 0).all()


def test_blocks_that_were_swapped_out_and_in_give_the_same(ipex) -> None:
    world = make_world([Row(1, 40)], "bfloat16", num_decodes=1)
    cache = world.poisoned_cache(ipex, torch.nan)
    expected = world.step(ipex, cache)
    host = ipex.allocate_host_kv_cache(cache, 4)
    out = np.stack((world.tables[0].astype(np.int64), np.arange(3)), axis=1)
    ipex.swap_blocks(cache, host, out).wait()
    ipex.zero_blocks(cache, out[:, 0])
    ipex.swap_blocks(host, cache, out[:, ::-1].copy()).wait()
    assert torch.equal(world.step(ipex, cache), expected)


@pytest.mark.parametrize(
    ("kv", "attention", "reason"),
    [
        ({"head_size": 20, "head_size_v": 20}, {"head_size": 20}, "head size 20 is not supported"),
        ({"head_size": 264, "head_size_v": 264}, {"head_size": 264}, "head size 264 is not supported"),
        ({"head_size_v": 32}, {}, "value head size 32 beside head size 16 is not supported by kernels='ipex'"),
        ({"block_size": 48}, {}, "block size 48 is not supported, only 8, 16, 32, 64, 128"),
        ({"block_size": 256}, {}, "block size 256 is not supported"),
        ({"kv_dtype": "int8"}, {}, "KV dtype 'int8' is not supported, only auto"),
        ({}, {"alibi_slopes": (0.5,) * 4}, "ALiBi is not supported by kernels='ipex'"),
        ({}, {"sinks": (0.5,) * 4}, "sinks are not supported by kernels='ipex'"),
    ],
)
def test_what_is_not_declared_is_refused(ipex, kv, attention, reason) -> None:
    plain = KVCacheSpec(1, 2, 16, 16, "float32", 16)
    spec, layer = replace(plain, **kv), replace(AttentionSpec(4, 2, 16, 0.25), **attention)
    assert any(reason in text for text in ipex.unsupported(spec, layer))
    with pytest.raises(Unsupported) as refused:
        ipex.attention_kernel(layer, spec)
    assert list(refused.value.reasons) == ipex.unsupported(spec, layer)


def test_declared_pairs_have_no_reason_against_them(ipex) -> None:
    promise = ipex.capabilities()
    for dtype, size in product(promise.dtypes, promise.block_sizes):
        kv = KVCacheSpec(1, 2, 16, 16, dtype, size)
        assert ipex.unsupported(kv, AttentionSpec(64, 2, 16, 0.25, 3, 2.0)) == []
    assert promise.features == {"sliding_window", "softcap", "mixed_batch", "async_swap"}


def test_a_step_without_causal_mask_is_refused(ipex) -> None:
    world = make_world([Row(3, 3)], causal=False)
    cache = ipex.allocate_kv_cache(world.kv, world.num_blocks)
    with pytest.raises(Unsupported, match="without causal mask is not supported by kernels='ipex'"):
        ipex.build_attention_metadata(world.batch(), cache)
