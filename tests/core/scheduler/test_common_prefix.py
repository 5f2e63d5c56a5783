"""Row 38: leading blocks that all rows of a step share. The episodes compare it with a look at all tables."""

from __future__ import annotations

from random import Random

import pytest

from baseboard.contract.plan import RowState, StepPlan, TableUpdate
from baseboard.contract.sampling import SamplingParams
from baseboard.scheduler.common_prefix import CommonPrefix
from baseboard.testing import Simulation
from core.simulation.texts import as_alone, text

BLOCK = 4


def state(name: str, blocks: list[int]) -> RowState:
    return RowState(name, tuple(range(9)), 9, SamplingParams(), 0, (tuple(blocks), (99,)))


def plan(ids: list[str], start: int = 99, **moves) -> StepPlan:
    return StepPlan(0, tuple(ids), (start,) * len(ids), (1,) * len(ids), (1,) * len(ids), **moves)


def common(prefix: CommonPrefix, *args, **moves) -> int | None:
    return prefix.report(plan(*args, **moves)).num_common_prefix_blocks


def test_rows_that_come_and_go_and_get_blocks() -> None:
    prefix = CommonPrefix(BLOCK)
    assert common(prefix, ["a"], entered=(state("a", [7, 3, 9]),)) == 3
    assert common(prefix, ["a", "b"], entered=(state("b", [7, 3, 4, 8]),)) == 2
    assert common(prefix, ["a", "b", "c"], entered=(state("c", [7, 5]),)) == 1
    assert common(prefix, ["a", "b"], retired=("c",)) == 2
    assert common(prefix, ["a", "b"], updates=(TableUpdate("a", 3, (6,)),)) == 2
    assert common(prefix, ["b"], retired=("a",)) == 4
    assert common(prefix, ["b"], updates=(TableUpdate("b", 4, (2,)),)) == 5


def test_only_the_rows_of_the_step_count() -> None:
    prefix = CommonPrefix(BLOCK)
    assert common(prefix, ["a", "b"], entered=(state("a", [7, 3]), state("b", [8]))) == 0
    assert common(prefix, ["a"]) == 2
    assert common(prefix, ["b"]) == 1
    assert common(prefix, ["a", "b"]) == 0
    assert common(prefix, []) == 0


def test_an_entry_that_is_replaced_is_no_longer_common() -> None:
    """Two samples share a half-filled block until one of them copies it."""
    prefix = CommonPrefix(BLOCK)
    assert common(prefix, ["a", "b"], entered=(state("a", [7, 3]), state("b", [7, 3]))) == 2
    assert common(prefix, ["a", "b"], updates=(TableUpdate("b", 1, (5,)),)) == 1
    assert common(prefix, ["a", "b"], updates=(TableUpdate("a", 1, (5,)),)) == 2


def test_other_layer_groups_do_not_count() -> None:
    rows = (state("a", [7, 3]), state("b", [7, 3]))
    first, second = CommonPrefix(BLOCK), CommonPrefix(BLOCK, group=1)
    assert (common(first, ["a", "b"], entered=rows), common(second, ["a", "b"], entered=rows)) == (2, 1)
    updates = (TableUpdate("b", 0, (5,), group=1),)
    assert (common(first, ["a", "b"], updates=updates), common(second, ["a", "b"], updates=updates)) == (2, 0)
    with pytest.raises(ValueError, match="no group sees whole sequences"):
        Simulation(32, 4, layer_windows=(3, 8), common_prefix=True)


def test_a_block_that_all_have_behind_one_that_differs_is_not_common() -> None:
    prefix = CommonPrefix(BLOCK)
    assert common(prefix, ["a", "b"], entered=(state("a", [1, 3]), state("b", [2, 3]))) == 0


def test_blocks_that_a_row_writes_to_are_left_out() -> None:
    prefix = CommonPrefix(BLOCK)
    rows = (state("a", [7, 3, 9]), state("b", [7, 3, 9]))
    assert common(prefix, ["a", "b"], entered=rows, start=8) == 2
    assert common(prefix, ["a", "b"], start=7) == 1


def test_a_row_that_leaves_and_enters_again_in_one_plan() -> None:
    prefix = CommonPrefix(BLOCK)
    assert common(prefix, ["a", "b"], entered=(state("a", [7, 3]), state("b", [7, 4]))) == 1
    assert common(prefix, ["a", "b"], retired=("b",), entered=(state("b", [7, 3]),)) == 2


@pytest.mark.parametrize("seed", range(30))
def test_any_changes_give_what_a_look_at_all_tables_gives(seed: int) -> None:
    rng, prefix = Random(seed), CommonPrefix(1)
    tables: dict[str, list[int]] = {}
    for number in range(60):
        retired = tuple(rng.sample(sorted(tables), min(len(tables), rng.choice((0, 0, 0, 1, 2)))))
        for name in retired:
            del tables[name]
        updates = []
        for name in rng.sample(sorted(tables), min(len(tables), rng.choice((0, 1, 2)))):
            first = rng.randint(0, len(tables[name]))
            blocks = tuple(10 * at + rng.randint(1, 2) for at in range(first, first + rng.randint(1, 2)))
            tables[name][first : first + len(blocks)] = blocks
            updates.append(TableUpdate(name, first, blocks))
        entered = tuple(
            state(f"r{number}/{nth}", [10 * at + rng.choice((1, 1, 1, 2)) for at in range(rng.randint(1, 5))])
            for nth in range(rng.choice((0, 0, 1, 2)))
        )
        tables |= {each.id: list(each.tables[0]) for each in entered}
        ids = [name for name in sorted(tables) if rng.randint(0, 5)]
        rows = [tables[name] for name in ids]
        expected = 0
        while rows and all(len(row) > expected for row in rows) and len({row[expected] for row in rows}) == 1:
            expected += 1
        got = common(prefix, ids, retired=retired, updates=tuple(updates), entered=entered)
        assert not ids or got == expected


def test_the_work_of_a_step_in_which_nothing_changes_does_not_grow_with_the_tables() -> None:
    """O(change): the tables are not looked at. A list that counts says so."""

    class Counting(list):
        looks = 0

        def __getitem__(self, at):
            Counting.looks += 1
            return super().__getitem__(at)

    prefix = CommonPrefix(1)
    rows = tuple(state(f"r{nth}", [*range(1, 2000), 5000 + nth]) for nth in range(8))
    ids = [row.id for row in rows]
    assert common(prefix, ids, entered=rows, start=9999) == 1999
    prefix._tables.update({name: Counting(table) for name, table in prefix._tables.items()})
    for nth, name in enumerate(ids):
        assert common(prefix, ids, start=9999, updates=(TableUpdate(name, 2000, (7000 + nth,)),)) == 1999
    assert Counting.looks <= 5 * len(ids)


def test_the_simulation_reports_it_where_it_is_asked_for() -> None:
    """Three requests with a system prompt of 3 blocks; a fourth without it ends the sharing."""
    sim = Simulation(64, 4, common_prefix=True)
    system = text(12)
    sim.submit([*system, 1], max_tokens=1)
    sim.run()
    handles = [sim.submit([*system, key, 2], max_tokens=9) for key in (1, 2, 3)]
    assert sim.step().num_common_prefix_blocks == 3
    assert sim.step().num_common_prefix_blocks == 3
    stranger = sim.submit(text(5, 9), max_tokens=2)
    assert sim.step().num_common_prefix_blocks == 0
    sim.step()
    assert stranger.finish_reason == "length"
    assert sim.step().num_common_prefix_blocks == 3
    sim.run()
    assert as_alone(sim, *handles, stranger)
    assert Simulation(8, 4).step().num_common_prefix_blocks is None
