"""Encoder-decoder: blocks for what the source is encoded to, taken once, kept to the end. Row 45."""

from __future__ import annotations

import pytest

from baseboard.contract.errors import RequestRejected
from baseboard.contract.plan import StepPlan
from baseboard.testing import Handle, Simulation
from core.simulation.texts import as_alone, run_until, text

SOURCE = [7, 3, 9, 9, 1, 0, 4, 4, 2, 8]  # 3 blocks of 4


def encoded(plan: StepPlan) -> list[str]:
    """Rows whose source a plan has encoded."""
    return [state.id for state in plan.entered if state.source]


def test_cross_blocks_are_taken_once_and_never_grow() -> None:
    """Row 45: 3 beside the 2 of the prompt; 14 outputs later the text has 5, and the source its 3."""
    sim = Simulation(20, 4)
    handle = sim.submit(text(6), max_tokens=15, source=SOURCE)
    plan = sim.step()
    (state,) = plan.entered
    assert (state.source, state.num_source_tokens, len(state.cross)) == (tuple(SOURCE), 10, 3)
    assert sorted(handle.blocks) == sorted((*state.tables[0], *state.cross))
    assert len(handle.blocks) == 5
    run_until(sim, handle, 14)
    assert sim.scheduler.kv.cross(handle.id) == state.cross
    assert len(handle.blocks) == 8
    sim.run()
    assert as_alone(sim, handle)
    assert sim.free_blocks == 20


def test_the_text_depends_on_the_source() -> None:
    sim = Simulation(60, 4, prefix_caching=False)
    handles = [sim.submit(text(6), max_tokens=8, source=source) for source in ((), SOURCE, [*SOURCE[:-1], 9])]
    sim.run()
    assert as_alone(sim, *handles)
    assert len({tuple(handle.tokens) for handle in handles}) == 3


def test_a_source_is_encoded_again_after_its_blocks_were_dropped() -> None:
    """Rows 23 and 45."""
    sim = Simulation(20, 4)
    handle = sim.submit(text(6), max_tokens=8, source=SOURCE)
    assert encoded(sim.step()) == [handle.id]
    assert encoded(sim.step()) == []
    sim.preempt(handle)
    assert sim.free_blocks == 20
    assert encoded(sim.step()) == [handle.id]
    sim.run()
    assert as_alone(sim, handle)


def test_cross_blocks_are_swapped_with_the_rest() -> None:
    """Rows 24 and 45: 5 blocks go and 5 come back; nothing is encoded again."""
    sim = Simulation(20, 4, num_host_blocks=5, prefix_caching=False)
    handle = sim.submit(text(6), max_tokens=8, source=SOURCE)
    sim.step()
    sim.preempt(handle, "swap")
    plan = sim.step()
    assert (len(plan.swaps_out), sim.free_blocks, sim.free_host_blocks) == (5, 20, 0)
    plan = sim.step()
    assert (len(plan.swaps_in), encoded(plan), sim.free_host_blocks) == (5, [], 5)
    sim.run()
    assert as_alone(sim, handle)


def test_without_host_room_for_all_of_it_it_is_computed_again() -> None:
    """Rows 26 and 45: 4 host blocks do for the text, not for text and source."""
    sim = Simulation(20, 4, num_host_blocks=4)
    handle = sim.submit(text(6), max_tokens=8, source=SOURCE)
    sim.step()
    sim.preempt(handle, "swap")
    assert handle.status == "preempted"
    sim.run()
    assert as_alone(sim, handle)


def test_admission_counts_the_source() -> None:
    """Row 45: 2 + 3 blocks each, 9 in all: the second waits until the first has ended."""
    sim = Simulation(9, 4)
    first = sim.submit(text(6, 1), max_tokens=2, source=SOURCE)
    second = sim.submit(text(6, 2), max_tokens=2, source=SOURCE)
    assert sim.step().tokens == {first.id: 6}
    assert sim.step().tokens == {first.id: 1}
    assert sim.step().tokens == {second.id: 6}
    sim.run()
    assert as_alone(sim, first, second)


def test_a_swapped_request_comes_back_when_its_source_has_room_too() -> None:
    """Row 45."""
    sim = Simulation(8, 4, num_host_blocks=8, prefix_caching=False)
    first = sim.submit(text(6, 1), max_tokens=6, source=SOURCE)
    sim.step()
    sim.preempt(first, "swap")
    sim.step()
    other = sim.scheduler.kv
    other.open("other")
    other.admit("other", other.no_match())
    assert other.extend("other", 0, 16) is not None  # 4 blocks are left, and 5 are needed
    assert sim.step().tokens == {}
    other.close("other")
    assert sim.step().tokens == {first.id: 1}
    sim.run()
    assert as_alone(sim, first)


def test_cross_blocks_are_never_found_in_the_index() -> None:
    """Rows 32 and 45: what the decoder computed is hit under the same source only."""
    sim = Simulation(60, 4)

    def run(source: list[int]) -> Handle:
        handle = sim.submit(text(10), max_tokens=1, source=source)
        sim.run()
        assert as_alone(sim, handle)
        return handle

    assert run(SOURCE).num_cached_tokens == 0
    assert sim.cached_blocks == 2  # the prompt's
    assert run([*SOURCE[:-1], 9]).num_cached_tokens == 0
    assert run([]).num_cached_tokens == 0
    assert run(SOURCE).num_cached_tokens == 8


def test_samples_and_forks_share_the_source() -> None:
    """Rows 33 and 45: the three samples have 3 cross blocks among them, and so has a fork."""
    sim = Simulation(60, 4)
    handle = sim.submit(text(8), max_tokens=6, n=3, seed=1, source=SOURCE)
    sim.step()
    assert sim.free_blocks == 60 - 2 - 3
    plan = sim.step()
    assert encoded(plan) == []
    kv = sim.scheduler.kv
    assert len({kv.cross(sample.id) for sample in handle.samples}) == 1
    child = sim.fork(handle)
    assert kv.cross(child.id) == kv.cross(handle.id)
    sim.preempt(handle)
    sim.run()
    assert as_alone(sim, *handle.samples, child)


def test_windows_do_not_reach_into_the_source() -> None:
    """Rows 35 and 45: the text keeps a window of 5 tokens, the source all its blocks."""
    sim = Simulation(9, 4, sliding_window=5)
    handle = sim.submit(text(5), max_tokens=40, source=SOURCE)
    run_until(sim, handle, 30)
    assert len(sim.scheduler.kv.cross(handle.id)) == 3
    sim.preempt(handle)
    sim.run()
    assert as_alone(sim, handle)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_text_ends_where_the_pool_beside_its_source_does(ranks: int) -> None:
    """Rows 45 and 52: 6 blocks, 3 for the source: 12 tokens have keys and values, and one more is known."""
    sim = Simulation(6, 4 // ranks, context_ranks=ranks)
    handle = sim.submit(text(6), max_tokens=40, source=SOURCE)
    sim.run()
    assert (len(handle.tokens), handle.finish_reason) == (7, "length")
    assert handle.tokens == sim.solo(handle)[:7]


@pytest.mark.parametrize(
    ("num_prompt", "source", "message"),
    [
        (13, SOURCE, "the prompt has 13 tokens, but the whole KV pool holds 12"),
        (1, [1] * 21, "the source has 21 tokens, but the whole KV pool of 6 blocks of 4 has no room for a prompt"),
    ],
)
def test_what_never_fits_beside_its_source_is_refused(num_prompt: int, source: list[int], message: str) -> None:
    sim = Simulation(6, 4)
    with pytest.raises(RequestRejected, match=message):
        sim.submit(text(num_prompt), source=source)
    assert sim.stats.tracked_requests == 0
    for fits, beside in ((12, SOURCE), (4, [1] * 20)):
        handle = sim.submit(text(fits), max_tokens=1, source=beside)
        sim.run()
        assert as_alone(sim, handle)


def test_keys_and_values_of_a_plain_text_from_outside_are_of_no_use() -> None:
    sim = Simulation(40, 4)
    sim.connector.offer(text(20), 16)
    handle = sim.submit(text(20), max_tokens=3, source=SOURCE)
    assert sim.step().loads == ()
    sim.run()
    assert as_alone(sim, handle)
