"""The index arrays of a step, entry by entry, against arrays written out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baseboard.contract import RowState, SamplingParams, StepBatch, StepPlan
from baseboard.runtime.rows import RowTable
from baseboard.runtime.step_batch import BatchBuilder, BatchLimits, padding_batch

GREEDY = SamplingParams(temperature=0)


class HostBuffers:
    """The one hook that a builder needs. What it gives is full of rubbish, as it would be in later steps."""

    def __init__(self) -> None:
        self.made: list[tuple[tuple[int, ...], str]] = []

    def allocate_host_buffer(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        self.made.append((shape, dtype))
        return np.full(shape, 99, dtype=dtype)


def builder(hook: Any = None) -> BatchBuilder:
    limits = BatchLimits(max_tokens=16, max_seqs=4, max_blocks=6, block_size=4)
    return BatchBuilder(hook or HostBuffers(), limits)


def rows(**blocks: tuple[int, ...]) -> RowTable:
    """Row ``a`` has tokens 100, 101, ..., row ``b`` 200, 201, ..., and so on."""
    table = RowTable(4, 6, frozenset())
    states = tuple(
        RowState(name, tuple(range(100 * number, 100 * number + 24)), 24, GREEDY, 0, (held,))
        for number, (name, held) in enumerate(blocks.items(), 1)
    )
    table.apply(StepPlan(0, (), (), (), (), entered=states))
    return table


def plan(*parts: tuple[str, int, int]) -> StepPlan:
    ids, starts, counts = zip(*parts, strict=True)
    return StepPlan(1, ids, starts, counts, samples=(1,) * len(ids))


def as_lists(batch: StepBatch) -> dict[str, Any]:
    names = ("query_start_loc", "seq_lens", "block_tables", "slot_mapping", "positions")
    return {name: getattr(batch, name).tolist() for name in names}


def test_a_mixed_step_by_hand() -> None:
    """A first chunk, a decode, a later chunk that crosses a block edge, and a decode at a block's first slot."""
    table = rows(a=(5,), b=(7, 2, 9), c=(4, 8, 1), d=(3, 6))
    made = builder().build(plan(("a", 0, 3), ("b", 9, 1), ("c", 6, 4), ("d", 4, 1)), table)
    # Rows of one token come first, else as planned: b, d, a, c.
    assert made.order == (1, 3, 0, 2)
    assert [row.state.id for row in made.rows] == ["b", "d", "a", "c"]
    assert as_lists(made.batch) == {
        "query_start_loc": [0, 1, 2, 5, 9],
        "seq_lens": [10, 5, 3, 10],
        "block_tables": [[7, 2, 9], [3, 6, 0], [5, 0, 0], [4, 8, 1]],
        # b: position 9 is slot 1 of block 9. d: position 4 is slot 0 of block 6. a: block 5. c: 6, 7 | 8, 9.
        "slot_mapping": [37, 24, 20, 21, 22, 34, 35, 4, 5],
        "positions": [9, 4, 0, 1, 2, 6, 7, 8, 9],
    }
    assert made.token_ids.tolist() == [209, 404, 100, 101, 102, 306, 307, 308, 309]
    batch = made.batch
    assert (batch.num_decodes, batch.max_query_len, batch.max_seq_len, batch.causal) == (2, 4, 10, True)
    assert (batch.num_seqs, batch.num_tokens) == (4, 9)


@pytest.mark.parametrize(
    ("parts", "num_decodes"),
    [
        ([("a", 0, 4), ("b", 4, 4)], 0),
        ([("a", 7, 1), ("b", 7, 1)], 2),
        ([("a", 0, 1), ("b", 3, 5)], 1),  # a prompt of one token, and a last chunk of one, count as decodes
    ],
)
def test_decodes_are_the_rows_of_one_token(parts: list[tuple[str, int, int]], num_decodes: int) -> None:
    batch = builder().build(plan(*parts), rows(a=(1, 2), b=(3, 4))).batch
    assert batch.num_decodes == num_decodes
    assert np.all(np.diff(batch.query_start_loc)[:num_decodes] == 1)


def test_dtypes_and_memory_order() -> None:
    made = builder().build(plan(("a", 0, 3), ("b", 7, 1)), rows(a=(1,), b=(2, 3)))
    batch = made.batch
    assert {batch.query_start_loc.dtype, batch.seq_lens.dtype, batch.block_tables.dtype} == {np.dtype("int32")}
    assert {batch.slot_mapping.dtype, batch.positions.dtype, made.token_ids.dtype} == {np.dtype("int64")}
    for array in (batch.query_start_loc, batch.seq_lens, batch.block_tables, batch.slot_mapping, batch.positions):
        assert array.flags.c_contiguous


def test_a_step_does_not_touch_the_arrays_of_the_one_before() -> None:
    table = rows(a=(1, 2), b=(3, 4))
    build = builder().build
    first = build(plan(("a", 0, 3), ("b", 0, 5)), table)
    before = as_lists(first.batch), first.token_ids.tolist()
    second = build(plan(("a", 3, 1), ("b", 5, 1)), table)
    assert (as_lists(first.batch), first.token_ids.tolist()) == before
    third = build(plan(("a", 4, 1), ("b", 6, 1)), table)
    for name in ("query_start_loc", "seq_lens", "block_tables", "slot_mapping", "positions"):
        assert not np.shares_memory(getattr(first.batch, name), getattr(second.batch, name))
        assert np.shares_memory(getattr(first.batch, name), getattr(third.batch, name))


def test_all_arrays_lie_in_buffers_of_the_backend_made_once() -> None:
    hook = HostBuffers()
    made = builder(hook)
    one_set = [((5,), "int32"), ((4,), "int32"), ((24,), "int32"), *[((16,), "int64")] * 3]
    assert hook.made == one_set * 2
    made.build(plan(("a", 0, 3)), rows(a=(1,)))
    assert len(hook.made) == 12


@pytest.mark.parametrize(
    ("num_tokens", "longest", "seq_lens"),
    [(8, 4, [4, 4]), (9, 4, [1, 4, 4]), (7, 4, [3, 4]), (3, 8, [3]), (1, 8, [1]), (3, 1, [1, 1, 1])],
)
def test_the_step_for_measuring_touches_the_null_block_only(num_tokens: int, longest: int, seq_lens: list[int]) -> None:
    batch = padding_batch(num_tokens, block_size=4, longest=longest)
    assert batch.seq_lens.tolist() == seq_lens
    assert batch.query_start_loc.tolist() == [0, *np.cumsum(seq_lens)]
    assert batch.positions.tolist() == [at for length in seq_lens for at in range(length)]
    assert not batch.block_tables.any()
    assert batch.block_tables.shape == (len(seq_lens), -(-max(seq_lens) // 4))
    assert batch.slot_mapping.tolist() == [position % 4 for position in batch.positions]
    assert (batch.num_tokens, batch.num_decodes) == (num_tokens, seq_lens.count(1))
    assert (batch.max_query_len, batch.max_seq_len) == (max(seq_lens), max(seq_lens))
