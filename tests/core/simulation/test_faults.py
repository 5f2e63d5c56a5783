"""Row 15 and the late events of the design: what a test may have go wrong around the scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baseboard.request.status import Status
from baseboard.scheduler.preemption import Recompute
from baseboard.testing import Simulation
from core.scheduler.bench import Bench
from core.simulation.texts import as_alone, run_until, text


def test_artificial_preemption_strikes_as_often_as_it_is_told_to_and_nobody_can_tell() -> None:
    """Row 15: 24 requests that run for 12 steps each, and a few more: a fifth of these; the seed says which."""
    sim = Simulation(400, 4, num_host_blocks=100, preempt_probability=0.2, seed=3)
    handles = [sim.submit(text(6, key), max_tokens=12, seed=key) for key in range(24)]
    sim.run(max_steps=3000)
    assert as_alone(sim, *handles)
    struck = sim.stats.num_preemptions
    again = Simulation(400, 4, num_host_blocks=100, preempt_probability=0.2, seed=3)
    for key in range(24):
        again.submit(text(6, key), max_tokens=12, seed=key)
    again.run(max_steps=3000)
    assert struck == again.stats.num_preemptions
    assert 40 < struck < 120
    assert 0 < sim.stats.num_swaps_out < struck, "in more than one way"


def test_without_a_probability_nobody_is_preempted_and_one_strikes_each_time() -> None:
    calm, wild = Simulation(16, 4), Simulation(16, 4, preempt_probability=1.0)
    for sim in (calm, wild):
        sim.submit(text(5), max_tokens=4)
        for _ in range(3):
            sim.step()
    assert (calm.stats.num_preemptions, wild.stats.num_preemptions) == (0, 2)
    with pytest.raises(ValueError, match=r"preempt_probability=1.5 must be from 0 to 1"):
        Simulation(16, 4, preempt_probability=1.5)


@pytest.mark.parametrize("depth", [0, 2])
def test_a_result_that_comes_late_changes_no_token(depth: int) -> None:
    sim = Simulation(16, 4, pipeline_depth=depth)
    h, other = sim.submit(text(5), max_tokens=9), sim.submit(text(5, 1), max_tokens=9)
    sim.delay_next_result(3)
    for _ in range(3):
        sim.step()
        assert h.tokens == []
    assert h.num_in_flight == 3
    sim.step()
    assert len(h.tokens) == (4 if not depth else 2)
    sim.run()
    assert as_alone(sim, h, other)
    assert sim.stats.num_scheduled_tokens == 2 * (5 + 8), "nothing is computed twice, nothing past the end"


def test_an_abort_that_is_delivered_late_finds_the_request_wherever_it_is_by_then() -> None:
    sim = Simulation(16, 4)
    h, done = sim.submit(text(5), max_tokens=20), sim.submit(text(5, 1), max_tokens=2)
    run_until(sim, h, 1)
    sim.abort(h, deliver_after=3)
    sim.abort(done, deliver_after=3)
    for _ in range(2):
        sim.step()
    assert (h.status, len(h.tokens)) == (Status.RUNNING, 3)
    sim.step()
    assert (h.status, len(h.tokens)) == (Status.RUNNING, 4)
    sim.step()
    assert (h.finish_reason, len(h.tokens), done.finish_reason) == ("abort", 4, "length")
    assert sim.free_blocks == 16


def test_only_what_has_not_begun_can_be_given_up() -> None:
    """Row 17: IGNORED is the end of a request that never ran; one that did, and was preempted, goes on."""
    sim = Simulation(16, 4, max_num_seqs=1)
    h, waits, parked = sim.submit(text(5), max_tokens=3), sim.submit(text(5, 1)), sim.submit([5], streaming=True)
    sim.step()
    sim.preempt(h)
    for each in (h, waits, parked):
        sim.give_up(each)
        sim.give_up(each)
    assert [each.finish_reason for each in (h, waits, parked)] == [None, "ignored", "ignored"]
    assert waits.status is Status.IGNORED
    sim.run()
    sim.give_up(h)
    assert h.finish_reason == "length"
    assert as_alone(sim, h)


def test_numbers_that_are_none_are_counted_and_the_request_goes_on() -> None:
    """Row 50: the executor says how many values were no numbers; whether that is a failure is its own policy."""
    sim = Simulation(16, 4)
    h, other = sim.submit(text(5), max_tokens=4), sim.submit(text(5, 1), max_tokens=4)
    h.facts.num_nans.extend([0, 7, 2])
    seen = []
    while h.finish_reason is None:
        sim.step()
        seen.append((h.num_nans, other.num_nans))
    assert seen == [(0, 0), (7, 0), (9, 0), (9, 0)]
    assert as_alone(sim, h, other)


def test_numbers_of_a_row_that_its_request_has_lost_are_not_counted() -> None:
    """Its result comes after the request has come back, and is dropped with all that it says."""
    bench = Bench()
    request = bench.add("x", range(5), max_tokens=4)
    _, stale = bench.plan()
    bench.scheduler.preempt(request, Recompute())
    _, result = bench.plan()
    bench.scheduler.commit(replace(stale, num_nans={0: 3}))
    assert (request.num_nans, request.outputs) == (0, [])
    bench.scheduler.commit(replace(result, num_nans={0: 2}))
    assert (request.num_nans, request.num_outputs) == (2, 1)


def test_a_row_that_fails_for_its_numbers_says_how_many() -> None:
    bench = Bench()
    request = bench.add("x", range(5), max_tokens=4)
    _, result = bench.plan()
    bench.scheduler.commit(replace(result, num_nans={0: 97}, failed={0: "NaN"}))
    assert (request.finish_reason, request.error, request.num_nans) == ("error", "NaN", 97)
