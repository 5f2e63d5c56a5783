"""Encodings from outside: at once, later, never, missing. Row 48."""

from __future__ import annotations

import pytest

from baseboard.contract.errors import ContractError
from baseboard.contract.plan import StepPlan, StepResult
from baseboard.testing import Simulation
from core.simulation.texts import as_alone, text


def loaded(plan: StepPlan) -> list[object]:
    return [each.span.content_id for each in plan.encoder_loads]


def test_what_is_at_hand_outside_is_fetched_and_costs_no_budget() -> None:
    """Row 48: both in one step, though the budget does for one of them."""
    sim = Simulation(40, 4, encoder_budget=5)
    sim.encoder_source.offer("X")
    handle = sim.submit(text(12), max_tokens=3, media=[(0, 4, "X", 5), (5, 4, "Y", 5)])
    plan = sim.step()
    assert plan.tokens == {handle.id: 12}
    assert loaded(plan) == ["X"]
    assert [each.span.content_id for each in plan.encodes] == ["Y"]
    sim.run()
    assert as_alone(sim, handle)


def test_what_is_fetched_needs_room_in_the_cache() -> None:
    """Row 48."""
    sim = Simulation(40, 4, encoder_cache_size=8)
    sim.encoder_source.offer("X")
    handle = sim.submit(text(12), max_tokens=3, media=[(0, 4, "Y", 5), (5, 4, "X", 5)])
    assert sim.step().tokens == {handle.id: 5}
    plan = sim.step()
    assert (loaded(plan), plan.encoder_drops) == (["X"], ("Y",))
    sim.run()
    assert as_alone(sim, handle)


def test_a_request_stops_before_what_is_on_its_way_and_others_pass() -> None:
    """Row 48: 3 steps late; what stands before the input is computed meanwhile, and so are others."""
    sim = Simulation(40, 4)
    sim.encoder_source.offer("X", latency=3)
    handle = sim.submit(text(12, 1), max_tokens=3, media=[(5, 4, "X", 5)])
    at_its_very_start = sim.submit(text(12, 2), max_tokens=3, media=[(0, 4, "X", 5)])
    other = sim.submit(text(12, 3), max_tokens=4)
    assert sim.step().tokens == {handle.id: 5, other.id: 12}
    assert at_its_very_start.status == "waiting"
    assert sim.step().tokens == {other.id: 1}
    assert sim.step().tokens == {other.id: 1}
    plan = sim.step()
    assert plan.tokens == {handle.id: 7, other.id: 1, at_its_very_start.id: 12}
    assert loaded(plan) == ["X"]
    sim.run()
    assert as_alone(sim, handle, at_its_very_start, other)


def test_a_swapped_request_that_waits_for_an_encoding_lets_others_come_in() -> None:
    """Row 48: both are swapped out; the first stands before an input that is on its way."""
    sim = Simulation(40, 4, num_host_blocks=20)
    sim.encoder_source.offer("X", latency=6)
    first = sim.submit(text(12, 1), max_tokens=3, media=[(5, 4, "X", 5)])
    second = sim.submit(text(12, 2), max_tokens=9)
    sim.step()
    for handle in (first, second):
        sim.preempt(handle, "swap")
    sim.step()  # moves them out
    assert sim.step().tokens == {second.id: 1}
    assert first.status == "swapped"
    sim.run()
    assert as_alone(sim, first, second)


def test_what_never_arrives_is_computed_here_after_the_timeout() -> None:
    """Row 48: the clock is injected."""
    sim = Simulation(40, 4, load_timeout=30.0)
    sim.encoder_source.offer("X", latency=None)
    handle = sim.submit(text(12), max_tokens=3, media=[(5, 4, "X", 5)])
    assert sim.step().tokens == {handle.id: 5}
    for seconds in (29.0, 0.9):
        sim.tick(seconds)
        assert sim.step().tokens == {}
    sim.tick(0.1)
    plan = sim.step()
    assert (plan.tokens, loaded(plan), len(plan.encodes)) == ({handle.id: 7}, [], 1)
    sim.run()
    assert as_alone(sim, handle)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_what_turns_out_to_be_missing_is_computed_here(depth: int) -> None:
    """Row 48: also for who was planned to read it in the steps after the one that was to fetch it."""
    sim = Simulation(60, 4, pipeline_depth=depth, max_num_batched_tokens=10)
    sim.encoder_source.offer("X", lost=True)
    first = sim.submit(text(16, 1), max_tokens=5, media=[(2, 12, "X", 5)])
    second = sim.submit(text(10, 2), max_tokens=5, media=[(3, 4, "X", 5)])
    assert loaded(sim.step()) == ["X"]
    sim.run()
    assert sim.encoder.stats.num_lost == 1
    assert sim.encoder.stats.num_computed == 1
    assert as_alone(sim, first, second)


def test_tokens_before_a_missing_encoding_are_kept() -> None:
    """Row 48: tokens 0 to 4 were computed in a step of their own."""
    sim = Simulation(60, 4, max_num_batched_tokens=5)
    sim.encoder_source.offer("X", lost=True)
    handle = sim.submit(text(10), max_tokens=2, media=[(5, 4, "X", 5)])
    sim.step()
    assert sim.step().starts == (5,)
    plan = sim.step()
    assert (plan.starts, plan.counts, len(plan.encodes)) == ((5,), (5,), 1)
    sim.run()
    assert as_alone(sim, handle)


def test_a_request_swapped_out_with_what_a_missing_encoding_left_computes_again() -> None:
    """Row 48: when the loss is known its blocks are on their way to the host."""
    sim = Simulation(60, 4, pipeline_depth=1, num_host_blocks=20)
    sim.encoder_source.offer("X", lost=True)
    handle = sim.submit(text(10), max_tokens=4, media=[(2, 4, "X", 5)])
    sim.step()
    sim.preempt(handle, "swap")
    sim.run()
    assert as_alone(sim, handle)


@pytest.mark.parametrize(
    ("lost", "rows", "message"),
    [(("Z",), {0: 0}, "not all of which it was to load"), (("X",), {}, "but computed rows that need them")],
)
def test_an_executor_that_contradicts_itself_is_told(lost: tuple[str, ...], rows: dict[int, int], message: str) -> None:
    sim = Simulation(60, 4)
    sim.encoder_source.offer("X")
    sim.submit(text(10), max_tokens=4, media=[(2, 4, "X", 5)])
    plan = sim.scheduler.schedule()
    sampled = () if rows else (5,)
    with pytest.raises(ContractError, match=message):
        sim.scheduler.commit(StepResult(plan.step, (sampled,), lost=rows, encoder_lost=lost))


def test_a_source_that_loses_it_each_time_is_asked_once_by_each_request() -> None:
    """Row 48: it goes on offering what is not there."""
    sim = Simulation(60, 4)
    for key in (1, 2):
        sim.encoder_source.offer("X", lost=True)
        handle = sim.submit(text(10, key), max_tokens=2, media=[(2, 4, "X", 5)])
        assert loaded(sim.step()) == ["X"]
        sim.encoder_source.offer("X", lost=True)
        plan = sim.step()
        assert (loaded(plan), len(plan.encodes)) == ([], 1)
        sim.run()
        assert as_alone(sim, handle)
        sim.reset_prefix_cache()


def test_a_prefix_and_an_encoding_may_be_missing_at_once() -> None:
    """Rows 46 and 48: of the row no token is good, though the encoding is needed from token 4 on only."""
    sim = Simulation(60, 4)
    prompt = text(12)
    sim.connector.offer(prompt, 4, latency=0, lost_blocks=(0,))
    sim.encoder_source.offer("X", lost=True)
    h = sim.submit(prompt, max_tokens=4, media=[(4, 5, "X", 1)])
    sim.run()
    assert as_alone(sim, h)
