"""The simulated device alone: what it must show so that mistakes of a scheduler come to light."""

from __future__ import annotations

import pytest

from baseboard.contract.plan import BlockPair, KVOpKind, RowState, StepPlan, TableUpdate
from baseboard.contract.sampling import SamplingParams
from baseboard.testing import SimulatedDevice
from baseboard.testing.device import Facts, InjectedFailure, Nastiness
from baseboard.testing.memory import SimulatedMemory
from baseboard.testing.model import POISON, VOCABULARY, Draw, Slot, next_token

A, B, C = (Slot(token, 0, 0) for token in (1, 2, 3))


def make(latency: int = 0, nastiness: Nastiness | None = None) -> SimulatedDevice:
    return SimulatedDevice(SimulatedMemory(8, 4, 2, latency), nastiness or Nastiness())


def filled(device: SimulatedDevice, **contents: Slot) -> None:
    device.execute(writes={(int(name[1:]), 0): slot for name, slot in contents.items()})


def firsts(device: SimulatedDevice, *blocks: int) -> list[Slot]:
    return [block[0] for block in device.execute(reads=blocks)]


def test_memory_begins_as_poison() -> None:
    assert make().execute(reads=[1, 8]) == [[POISON] * 2] * 2


def test_copies_read_all_sources_and_leave_them() -> None:
    device = make()
    filled(device, b5=A, b4=B)
    device.execute(copies=[(5, 6), (5, 7), (4, 3)])
    assert firsts(device, 5, 6, 7, 4, 3) == [A, A, A, B, B]


@pytest.mark.parametrize("copies", [[(5, 6), (6, 7)], [(5, 6), (4, 6)], [(5, 5)], [(5, 6), (6, 5)]])
def test_copies_that_overlap_in_one_batch_are_refused(copies: list[tuple[int, int]]) -> None:
    """Scenario 77: chains, duplicate targets, self copies. The core never emits them."""
    device = make()
    filled(device, b5=A)
    with pytest.raises(ValueError, match="overlap in one batch"):
        device.execute(copies=copies)
    assert firsts(device, 5, 6, 7) == [A, POISON, POISON]


@pytest.mark.parametrize("latency", [0, 1, 3])
def test_a_way_to_the_host_and_back_keeps_the_content(latency: int) -> None:
    device = make(latency)
    filled(device, b1=A, b2=B)
    device.execute(swaps_out=[(1, 0), (2, 3)])
    filled(device, b1=C, b2=C)
    device.execute(swaps_in=[(0, 5), (3, 1)])
    assert firsts(device, 5, 1, 2) == [A, B, C]


def test_a_transfer_lands_late_unless_somebody_touches_its_blocks() -> None:
    memory = SimulatedMemory(4, 4, 2, copy_latency=2)
    memory.begin_step()
    memory.write(1, 0, A)
    memory.write(2, 0, B)
    memory.move(KVOpKind.SWAP_OUT, [BlockPair(1, 0)])
    memory.move(KVOpKind.SWAP_OUT, [BlockPair(2, 1)])
    memory.begin_step()
    assert memory.host_block(0)[0] == POISON
    memory.begin_step()
    assert [memory.host_block(block)[0] for block in (0, 1)] == [A, B], "two steps later they have landed"
    memory.move(KVOpKind.SWAP_IN, [BlockPair(0, 3)])
    memory.move(KVOpKind.SWAP_IN, [BlockPair(1, 4)])
    assert memory.device_block(3)[0] == POISON
    assert memory.read([4], 0, 1) == [B], "who reads it has to wait"
    assert memory.device_block(3)[0] == A, "first in, first out"


def test_writing_to_the_source_of_a_transfer_under_way_waits_for_it() -> None:
    memory = SimulatedMemory(4, 4, 2, copy_latency=5)
    memory.write(1, 0, A)
    memory.move(KVOpKind.SWAP_OUT, [BlockPair(1, 0)])
    memory.poison([1])
    memory.write(1, 0, B)
    assert memory.host_block(0)[0] == A


def test_a_host_block_is_used_again_only_after_its_transfer() -> None:
    memory = SimulatedMemory(4, 4, 2, copy_latency=5)
    memory.write(1, 0, A)
    memory.move(KVOpKind.SWAP_OUT, [BlockPair(1, 0)])
    memory.move(KVOpKind.SWAP_IN, [BlockPair(0, 2)])
    memory.write(3, 0, B)
    memory.move(KVOpKind.SWAP_OUT, [BlockPair(3, 0)])
    assert memory.read([2], 0, 1) == [A]


def test_poisoned_blocks_are_unreadable() -> None:
    device = make()
    filled(device, b1=A)
    device.memory.poison([1])
    assert firsts(device, 1) == [POISON]


def test_a_table_that_is_too_short_reads_poison() -> None:
    memory = SimulatedMemory(4, 0, 2)
    memory.write(1, 0, A)
    assert memory.read([1], 0, 5) == [A, POISON, POISON, POISON, POISON]


def test_the_next_token_depends_on_every_slot_and_on_the_draw() -> None:
    context = [Slot(token, at, 0) for at, token in enumerate((3, 1, 4, 1, 5))]
    greedy = Draw(None, 0, 0)
    changed = [
        [*context[:at], context[at]._replace(**{name: 50}), *context[at + 1 :]]
        for at in range(5)
        for name in Slot._fields
    ]
    assert 0 <= next_token(context, greedy) < VOCABULARY
    same = sum(next_token(other, greedy) == next_token(context, greedy) for other in changed)
    assert same <= 1, "one in 97 may coincide"
    assert next_token(context, greedy) == next_token(context, Draw(None, 2, 9)), "greedy knows no sample or position"
    draws = {next_token(context, Draw(seed, sample, at)) for seed in (1, 2) for sample in (0, 1) for at in range(5)}
    assert len(draws) > 12


def plan(step: int = 0, **columns) -> StepPlan:
    return StepPlan(**{"step": step, "ids": (), "starts": (), "counts": (), "samples": (), **columns})


def entering(name: str = "x", tokens: tuple[int, ...] = (1, 2, 3), blocks: tuple[int, ...] = (1, 2)) -> RowState:
    return RowState(name, tokens, len(tokens), SamplingParams(temperature=0), 0, (blocks,))


def prefill(step: int = 0, **columns) -> StepPlan:
    return plan(
        step, **{"ids": ("x",), "starts": (0,), "counts": (3,), "samples": (1,), "entered": (entering(),), **columns}
    )


def test_rows_go_on_from_the_devices_own_state() -> None:
    device = make()
    device.facts["x"] = Facts(namespace=7)
    context = [Slot(token, at, 7) for at, token in enumerate((1, 2, 3))]
    (first,) = device.submit(prefill()).result().sampled
    assert first == (next_token(context, Draw(None, 0, 0)),)
    context.append(Slot(first[0], 3, 7))
    (second,) = device.submit(plan(1, ids=("x",), starts=(3,), counts=(1,), samples=(1,))).result().sampled
    assert second == (next_token(context, Draw(None, 0, 1)),)
    assert device.num_rows == 1
    device.submit(plan(2, retired=("x",)))
    assert device.num_rows == 0


def test_a_row_that_enters_twice_or_updates_beyond_its_table_is_an_error() -> None:
    device = make()
    device.facts["x"] = Facts()
    device.submit(prefill())
    with pytest.raises(ValueError, match="row 'x' enters but was never retired"):
        device.submit(prefill(1))
    with pytest.raises(ValueError, match="table of 'x' has 2 entries, update begins at 3"):
        device.submit(plan(1, updates=(TableUpdate("x", 3, (4,)),)))


def test_an_update_replaces_the_tail_of_a_table() -> None:
    device = make()
    device.facts["x"] = Facts()
    device.submit(prefill())
    device.submit(plan(1, updates=(TableUpdate("x", 1, (5, 6)),)))
    device.submit(plan(2, ids=("x",), starts=(3,), counts=(1,), samples=(0,)))
    assert device.memory.device_block(5)[1].position == 3
    assert device.memory.device_block(2)[1] == POISON


def test_zeroes_come_before_moves() -> None:
    device = make()
    filled(device, b1=A, b2=B)
    device.submit(plan(zeroes=(1,)))
    assert firsts(device, 1, 2) == [POISON, B]


@pytest.mark.parametrize("late", [False, True])
def test_an_injected_failure_meets_the_next_step_that_executes(late: bool) -> None:
    device = make(nastiness=Nastiness(late_metadata=late))
    device.facts["x"] = Facts()
    device.fail_next()
    pending = [device.submit(prefill()), device.submit(plan(1, retired=("x",)))]
    with pytest.raises(InjectedFailure, match="step 0 was told to fail"):
        pending[0].result()
    assert pending[1].result().sampled == ()
    assert device.num_rows == 0


def test_a_late_device_notices_a_plan_that_changed_meanwhile() -> None:
    device = make(nastiness=Nastiness(late_metadata=True))
    device.facts["x"] = Facts()
    given = prefill()
    pending = device.submit(given)
    assert device.num_rows == 0, "nothing is read yet"
    object.__setattr__(given, "zeroes", (3,))
    pending.result()
    assert device.metadata_mismatches == 1


def test_reversed_rows_give_results_in_the_plans_order() -> None:
    states = (entering("x", (1, 2), (1,)), entering("y", (3, 4), (2,)))
    both = plan(ids=("x", "y"), starts=(0, 0), counts=(2, 2), samples=(1, 1), entered=states)
    results = []
    for reverse in (False, True):
        device = make(nastiness=Nastiness(reverse_rows=reverse))
        device.facts.update(x=Facts(), y=Facts())
        results.append(device.submit(both).result().sampled)
    assert results[0] == results[1]
    assert results[0][0] != results[0][1]


def test_a_closed_device_holds_no_rows() -> None:
    device = make()
    device.facts["x"] = Facts()
    device.submit(prefill())
    device.close()
    assert device.num_rows == 0
