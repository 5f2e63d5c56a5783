"""Who is held back though there would be room: pauses, throttling, delay, adapters; and the order of work."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from baseboard.contract.errors import Unsupported
from baseboard.testing import Handle, Simulation
from core.simulation.texts import as_alone, run_until, text


def test_all_stands_still_while_everything_is_paused() -> None:
    sim = Simulation(32, 4)
    first = sim.submit(text(6), max_tokens=8)
    run_until(sim, first, 3)
    sim.pause("all")
    assert sim.step().ids == ()
    assert len(first.tokens) == 3
    sim.reset_prefix_cache(preempt=True)
    sim.pause("none")
    sim.run()
    assert as_alone(sim, first)
    assert len(first.tokens) == 8


def test_only_what_has_never_started_waits_while_new_requests_are_paused() -> None:
    sim = Simulation(32, 4)
    first = sim.submit(text(6), max_tokens=8)
    run_until(sim, first, 3)
    sim.pause("new")
    second = sim.submit(text(5, 1), max_tokens=4)
    sim.preempt(first)
    assert sim.step().ids == (first.id,)  # preempted, not new: it comes back
    sim.pause("none")
    assert second.id in sim.step().ids
    sim.run()
    assert as_alone(sim, first, second)


def test_a_throttled_step_begins_no_prefill() -> None:
    """Row 12."""
    sim = Simulation(32, 4)
    first = sim.submit(text(6), max_tokens=8)
    sim.step()
    second = sim.submit(text(5, 1), max_tokens=4)
    sim.throttle(True)
    assert [sim.step().ids for _ in range(2)] == [(first.id,)] * 2
    sim.throttle(False)
    assert sim.step().ids == (first.id, second.id)
    sim.run()
    assert as_alone(sim, first, second)


def test_prefill_waits_for_the_delay_factor_times_the_last_prompt_step() -> None:
    """Row 11: the prompt step took 1.0 s, so with factor 2 the next prompt waits 2.0 s; here it came at 1.0."""
    sim = Simulation(64, 4, delay_factor=2.0)
    first = sim.submit(text(6), max_tokens=60)
    sim.step()
    sim.tick(1.0)
    second = sim.submit(text(5, 1), max_tokens=4)
    assert sim.step().ids == (first.id,)
    sim.tick(1.9)
    assert sim.step().ids == (first.id,)
    sim.tick(0.1)
    assert sim.step().ids == (first.id, second.id)


def test_nobody_is_delayed_where_nothing_runs() -> None:
    sim = Simulation(64, 4, delay_factor=100.0)
    first = sim.submit(text(6), max_tokens=2)
    sim.run()
    sim.tick(5.0)
    second = sim.submit(text(5, 1), max_tokens=2)
    assert sim.step().ids == (second.id,)
    assert first.finish_reason == "length"


def adapters(sim: Simulation, names: Sequence[str | None], max_tokens: int = 5) -> list[Handle]:
    return [sim.submit(text(4, at), max_tokens=max_tokens, adapter=name) for at, name in enumerate(names)]


def test_requests_for_other_adapters_keep_their_place_and_are_passed() -> None:
    """Scenario 11 a."""
    sim = Simulation(64, 4, max_loras=2)
    x1, x2, x3, x4, x5 = adapters(sim, ["a1", "a2", "a3", None, "a1"])
    assert set(sim.step().ids) == {x1.id, x2.id, x4.id, x5.id}
    sim.run()
    assert as_alone(sim, x1, x2, x3, x4, x5)


def test_an_adapter_starts_within_the_stated_bound_in_spite_of_a_stream_for_others() -> None:
    """Scenario 11 b: patience of 16 steps, then the longest request's 10."""
    sim = Simulation(640, 4, max_loras=2)
    adapters(sim, ["a1", "a2"], max_tokens=10)
    starved = sim.submit(text(3, 9), max_tokens=4, adapter="a3")
    started = None
    for at in range(60):
        adapters(sim, ["a1", "a2"], max_tokens=10)
        sim.step()
        in_use = {r.spec.adapter for r in sim.scheduler.running if r.spec.adapter}
        assert len(in_use) <= 2
        if started is None and starved.tokens:
            started = at
    assert started is not None
    assert 16 <= started <= 16 + 1 + 10
    sim.run()
    assert as_alone(sim, starved)


def test_a_half_prefilled_request_counts_against_the_adapter_limit() -> None:
    """Scenario 11 c."""
    sim = Simulation(64, 4, max_loras=2, max_num_batched_tokens=8)
    (decoding,) = adapters(sim, ["a2"])
    sim.step()
    half = sim.submit(text(20, 1), max_tokens=3, adapter="a1")
    sim.step()
    assert 0 < half.num_computed_tokens < 20
    other = sim.submit(text(2, 2), max_tokens=3, adapter="a3")
    assert set(sim.step().ids) == {decoding.id, half.id}
    sim.run()
    assert as_alone(sim, decoding, half, other)


def test_adapters_share_no_prefix() -> None:
    """Scenario 45, as far as names go: the base model hits its own blocks only."""
    sim = Simulation(64, 16)
    prompt = text(64)
    runs = []
    for adapter in (None, "x", "y", None):
        runs.append(sim.submit(prompt, max_tokens=2, adapter=adapter))
        sim.run()
    assert [run.num_cached_tokens for run in runs] == [0, 0, 0, 48]
    assert as_alone(sim, *runs)


def test_prefill_first_decodes_nothing_in_a_step_that_begins_a_prompt() -> None:
    """Row 2."""
    sim = Simulation(64, 4, policy="prefill_first")
    first = sim.submit(text(6), max_tokens=6)
    sim.step()
    second, third = sim.submit(text(5, 1), max_tokens=3), sim.submit(text(9, 2), max_tokens=3)
    assert sim.step().tokens == {second.id: 5, third.id: 9}
    assert sim.step().tokens == {first.id: 1, second.id: 1, third.id: 1}
    sim.run()
    assert as_alone(sim, first, second, third)


def test_prefill_first_begins_nothing_while_anything_is_swapped_out() -> None:
    """Row 2."""
    sim = Simulation(6, 4, num_host_blocks=8, policy="prefill_first", preemption="swap")
    first, second = sim.submit(text(8), max_tokens=12), sim.submit(text(8, 1), max_tokens=12)
    late = None
    for _ in range(40):
        plan = sim.step()
        if second.status == "swapped" and late is None:
            late = sim.submit(text(2, 2), max_tokens=2)
        if late is not None and sim.scheduler.num_swapped:
            assert late.id not in plan.ids
    sim.run()
    assert late is not None
    assert as_alone(sim, first, second, late)


def test_the_tokens_given_out_may_be_fewer_than_the_runner_takes() -> None:
    """Row 5."""
    sim = Simulation(64, 4, max_num_batched_tokens=32, max_num_scheduled_tokens=10)
    first = sim.submit(text(25), max_tokens=2)
    assert [sim.step().tokens[first.id] for _ in range(3)] == [10, 10, 5]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"delay_factor": -1.0}, "delay_factor=-1.0 must not be negative"),
        ({"max_loras": 0}, "max_adapters=0 must be at least 1"),
        ({"max_num_scheduled_tokens": 0}, "max_num_scheduled_tokens=0 must be at least 1"),
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Simulation(8, 4, **settings)  # pyright: ignore[reportArgumentType]


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Unsupported, match=r"policy='lifo' is unknown; known are aging, fcfs, prefill_first, priority"):
        Simulation(8, 4, policy="lifo")
