"""A plan while it is made: columns, and batches of block moves."""

from __future__ import annotations

import pytest

from baseboard.contract.plan import BlockPair, KVOpKind
from baseboard.contract.sampling import SamplingParams
from baseboard.request.request import Request, RequestSpec
from baseboard.scheduler.draft import Draft

OUT, IN, COPY = KVOpKind.SWAP_OUT, KVOpKind.SWAP_IN, KVOpKind.COPY


def batches(*moves: tuple[KVOpKind, list[tuple[int, int]]]) -> list[tuple[KVOpKind, list[tuple[int, int]]]]:
    draft = Draft(10)
    for kind, pairs in moves:
        draft.move(kind, tuple(BlockPair(*pair) for pair in pairs))
    plan = draft.freeze(0, (), ())
    return [(op.kind, [(pair.source, pair.destination) for pair in op.pairs]) for op in plan.kv_ops]


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([(COPY, [(5, 6)]), (COPY, [(5, 7)])], [(COPY, [(5, 6), (5, 7)])]),  # one source, two copies: one batch
        ([(COPY, [(5, 6)]), (COPY, [(6, 7)])], [(COPY, [(5, 6)]), (COPY, [(6, 7)])]),  # a destination becomes a source
        ([(COPY, [(5, 6)]), (COPY, [(8, 5)])], [(COPY, [(5, 6)]), (COPY, [(8, 5)])]),  # a source is handed out again
        ([(COPY, [(5, 6)]), (COPY, [(4, 6)])], [(COPY, [(5, 6)]), (COPY, [(4, 6)])]),  # a destination, twice
        ([(OUT, [(1, 0)]), (OUT, [(2, 1)])], [(OUT, [(1, 0), (2, 1)])]),
        ([(IN, [(0, 1)]), (IN, [(1, 2)])], [(IN, [(0, 1), (1, 2)])]),  # other pools: equal numbers mean nothing
        ([(OUT, [(1, 0)]), (COPY, [(2, 3)]), (OUT, [(4, 1)])], [(OUT, [(1, 0)]), (COPY, [(2, 3)]), (OUT, [(4, 1)])]),
        ([(COPY, [])], []),
    ],
)  # fmt: skip
def test_moves_join_the_last_batch_where_order_within_it_cannot_matter(moves, expected) -> None:
    """Scenario 77, seen from the core: chains are split, duplicate destinations never share a batch."""
    assert batches(*moves) == expected


def test_rows_become_columns() -> None:
    draft = Draft(10)
    for name, start, count, samples in (("a", 4, 1, 1), ("b", 0, 5, 0)):
        draft.add_row(Request(RequestSpec(name, (1,), SamplingParams(), 9, frozenset()), (0,)), start, count, samples)
    plan = draft.freeze(7, ("gone",), (3, 2))
    assert draft.budget == 4
    assert (plan.step, plan.ids, plan.starts, plan.counts, plan.samples) == (7, ("a", "b"), (4, 0), (1, 5), (1, 0))
    assert (plan.retired, plan.zeroes, plan.entered, plan.updates, plan.kv_ops) == (("gone",), (3, 2), (), (), ())
    assert (plan.num_tokens, plan.tokens) == (6, {"a": 1, "b": 5})
