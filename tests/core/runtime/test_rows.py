"""What the executor keeps of each request: rows, their block tables, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from baseboard.contract import ContractError, RowState, SamplingParams, StepPlan, TableUpdate
from baseboard.runtime.rows import RowTable

GREEDY = SamplingParams(temperature=0)


def state(row_id: str, tokens: tuple[int, ...] = (1, 2), blocks: tuple[int, ...] = (), **params: Any) -> RowState:
    chosen = SamplingParams(**({"temperature": 0} | params))
    return RowState(row_id, tokens, len(tokens), chosen, 0, (blocks,))


def plan(**changes: Any) -> StepPlan:
    return StepPlan(step=0, ids=(), starts=(), counts=(), samples=(), **changes)


def table(max_rows: int = 3) -> RowTable:
    return RowTable(max_rows, 5, frozenset({2}))


def lines(rows: RowTable, *ids: str) -> list[list[int]]:
    return [rows.blocks[rows[row_id].index].tolist() for row_id in ids]


def test_rows_enter_grow_and_leave() -> None:
    rows = table()
    rows.apply(plan(entered=(state("a", blocks=(7, 8)), state("b", blocks=(9,)))))
    assert lines(rows, "a", "b") == [[7, 8, 0, 0, 0], [9, 0, 0, 0, 0]]
    assert rows["a"].tokens == [1, 2]

    rows.apply(plan(updates=(TableUpdate("a", 2, (3, 4)), TableUpdate("b", 0, (5, 6)))))
    assert lines(rows, "a", "b") == [[7, 8, 3, 4, 0], [5, 6, 0, 0, 0]]
    rows.apply(plan(updates=(TableUpdate("a", 1, (1,)),)))  # only the entries that it names
    assert lines(rows, "a") == [[7, 1, 3, 4, 0]]

    rows.apply(plan(retired=("a",)))
    assert [row.state.id for row in rows] == ["b"]
    assert len(rows) == 1
    with pytest.raises(KeyError):
        rows["a"]


def test_a_line_is_used_again_and_clean() -> None:
    rows = table(max_rows=1)
    rows.apply(plan(entered=(state("a", blocks=(1, 2, 3, 4, 5)),)))
    rows.apply(plan(retired=("a",), entered=(state("b", blocks=(6,)),)))  # leaving comes first
    assert lines(rows, "b") == [[6, 0, 0, 0, 0]]


def test_a_row_with_a_table_for_each_layer_group_is_refused() -> None:
    two = RowState("a", (1, 2), 2, GREEDY, 0, tables=((1,), (2,)))
    with pytest.raises(ContractError, match="row 'a' has 2 block tables; this executor keeps one"):
        table().apply(plan(entered=(two,)))


def test_the_tokens_of_a_row_are_its_own() -> None:
    given = state("a", tokens=(1, 2, 3))
    rows = table()
    rows.apply(plan(entered=(given,)))
    rows["a"].tokens.append(4)
    assert given.token_ids == (1, 2, 3)


def test_plans_that_contradict_the_rows() -> None:
    rows = table(max_rows=2)
    rows.apply(plan(entered=(state("a"), state("b"))))
    with pytest.raises(ContractError, match="row 'a' enters but was never retired"):
        rows.apply(plan(entered=(state("a"),)))
    with pytest.raises(ContractError, match="row 'c' enters, but all 2 rows are taken"):
        rows.apply(plan(entered=(state("c"),)))


def test_a_row_that_draws_has_to_have_a_seed() -> None:
    with pytest.raises(ContractError, match="row 'a' draws its tokens but has no seed"):
        table().apply(plan(entered=(state("a", temperature=1.0),)))
    rows = table()
    rows.apply(plan(entered=(state("a", temperature=1.0, seed=0), state("b"))))
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {2}),
        ({"stop_token_ids": [5, 6]}, {2, 5, 6}),
        ({"stop_token_ids": [5], "ignore_eos": True}, {5}),
        ({"ignore_eos": True}, set()),
    ],
)
def test_tokens_that_may_not_come_too_early(params: dict[str, Any], expected: set[int]) -> None:
    assert table().stop_ids(state("a", **params)) == expected
