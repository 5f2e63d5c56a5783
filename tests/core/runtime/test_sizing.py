"""The arithmetic from bytes to blocks, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baseboard.contract import MemoryShortage
from baseboard.runtime.sizing import MemoryProfile, MemoryReport, SizingLimits, given_pool, size_pool

GIB = 1024**3

#: 80 GiB, others hold 10: what is free now is what is left beside them and our own 20 GiB of weights.
PROFILE = MemoryProfile(total=80 * GIB, free=50 * GIB, weights=20 * GIB, held=20 * GIB, activation_peak=4 * GIB)
#: Blocks of 1 MiB; so many sequences that they never limit the pool.
LIMITS = SizingLimits(
    memory_fraction=0.8, block_nbytes=GIB // 1024, block_size=16, max_model_len=1025, max_num_seqs=10**6
)


def check_sum(report: MemoryReport) -> None:
    assert sum(nbytes for _, nbytes in report.lines()) == report.budget
    assert all(nbytes >= 0 for _, nbytes in report.lines())


@pytest.mark.parametrize(
    ("free", "kv_gib"),
    [
        (50, 40),  # the budget of 64 GiB less 24
        (55, 40),  # others gave 5 back: the budget is the limit all the same
        (45, 40),  # others took 5: 45 less the activations' 4 would still do
        (44, 40),  # just so
        (30, 26),  # others took 20: never more than is free
    ],
)
def test_others_may_come_and_go_while_it_is_measured(free: int, kv_gib: int) -> None:
    report = size_pool(replace(PROFILE, free=free * GIB), LIMITS)
    assert report.kv_cache == kv_gib * GIB  # the null block included
    assert report.num_blocks == kv_gib * 1024 - 1
    assert report.margin == (40 - kv_gib) * GIB
    check_sum(report)


def test_items_beside_the_weights() -> None:
    report = size_pool(replace(PROFILE, held=23 * GIB), LIMITS)
    assert dict(report.lines()) == {
        "weights": 20 * GIB,
        "libraries and buffers": 3 * GIB,
        "activation peak": 4 * GIB,
        "KV cache": 37 * GIB,
        "margin": 0,
    }
    assert report.budget == 64 * GIB


def test_the_pool_is_no_larger_than_its_requests_could_fill() -> None:
    report = size_pool(PROFILE, replace(LIMITS, max_num_seqs=4))
    # 1,024 of 1,025 tokens are stored, the last one's keys are never needed: 64 blocks of 16 for each of 4.
    assert report.num_blocks == 4 * 64
    assert report.kv_cache == 257 * LIMITS.block_nbytes
    assert report.margin == 40 * GIB - report.kv_cache
    check_sum(report)


def test_a_block_is_no_part_of_a_block() -> None:
    odd = replace(LIMITS, block_nbytes=3 * GIB, max_model_len=17)
    report = size_pool(PROFILE, odd)
    assert report.num_blocks == 12  # 13 blocks of 3 GiB in 40, one of them the null block
    assert report.margin == 1 * GIB


def test_28_layers_count_28_times() -> None:
    """8 KV heads of 128 in bfloat16, blocks of 16: keys and values of all layers take 1,835,008 bytes a block."""
    nbytes = 28 * 8 * 128 * 2 * 2 * 16
    assert nbytes == 1_835_008
    profile = MemoryProfile(total=4 * GIB, free=4 * GIB, weights=0, held=0, activation_peak=0)
    report = size_pool(profile, replace(LIMITS, memory_fraction=1.0, block_nbytes=nbytes))
    assert report.num_blocks + 1 == 2340
    check_sum(report)


@pytest.mark.parametrize(
    ("budget_blocks", "num_blocks"),
    [
        (65, 64),  # one sequence's 64 blocks and the null block
        (66, 65),
        (64, None),
        (1, None),
        (0, None),
        (-3500, None),  # weights larger than the budget
    ],
)
def test_at_least_one_sequence_or_an_error(budget_blocks: int, num_blocks: int | None) -> None:
    held = 64 * GIB - 4 * GIB - budget_blocks * LIMITS.block_nbytes
    profile = replace(PROFILE, held=held, weights=held, free=80 * GIB)
    if num_blocks is not None:
        assert size_pool(profile, LIMITS).num_blocks == num_blocks
        return
    with pytest.raises(MemoryShortage) as short:
        size_pool(profile, LIMITS)
    need, have = 65 * LIMITS.block_nbytes, max(0, budget_blocks) * LIMITS.block_nbytes
    assert f"needs {need:,} bytes" in str(short.value)
    assert f"{have:,} are left: {need - have:,} bytes are missing" in str(short.value)
    assert "raise memory_fraction" in str(short.value)


def test_the_longest_servable_length_is_named_and_can_be_served() -> None:
    held = 64 * GIB - 4 * GIB - 11 * LIMITS.block_nbytes
    profile = replace(PROFILE, held=held, weights=held, free=80 * GIB)
    with pytest.raises(MemoryShortage, match="max_model_len=161 would fit"):  # 10 blocks of 16, and the last token
        size_pool(profile, LIMITS)
    assert size_pool(profile, replace(LIMITS, max_model_len=161)).num_blocks >= 10
    with pytest.raises(MemoryShortage):
        size_pool(profile, replace(LIMITS, max_model_len=162))


def test_where_no_block_fits_other_settings_are_named() -> None:
    with pytest.raises(MemoryShortage, match=r"not even one block fits: lower max_num_batched_tokens"):
        size_pool(replace(PROFILE, held=64 * GIB, weights=64 * GIB), LIMITS)


def test_what_others_hold_can_be_the_reason() -> None:
    """0.9 of 80 GiB are 72, but only 70 were free at the start: the numbers are all there to see it."""
    profile = replace(PROFILE, free=4 * GIB)
    with pytest.raises(MemoryShortage) as short:
        size_pool(profile, replace(LIMITS, memory_fraction=0.9))
    for number in (72 * GIB, 80 * GIB, 20 * GIB, 4 * GIB):
        assert f"{number:,}" in str(short.value)


@pytest.mark.parametrize(
    ("num_blocks", "budget_gib", "margin_gib"), [(1023, 64, 39), (40 * 1024 - 1, 64, 0), (45 * 1024 - 1, 69, 0)]
)
def test_a_pool_that_the_user_named_is_not_changed(num_blocks: int, budget_gib: int, margin_gib: int) -> None:
    report = given_pool(PROFILE, LIMITS, num_blocks)
    assert report.num_blocks == num_blocks
    assert report.kv_cache == (num_blocks + 1) * LIMITS.block_nbytes
    assert (report.budget, report.margin) == (budget_gib * GIB, margin_gib * GIB)
    check_sum(report)
