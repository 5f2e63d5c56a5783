"""Row 49: requests that want one value of their prompt, and end with it."""

from __future__ import annotations

import pytest

from baseboard.contract.errors import ContractError, RequestRejected
from baseboard.contract.plan import StepResult
from baseboard.contract.sampling import SamplingParams
from baseboard.request.request import RequestSpec, Task
from baseboard.request.status import Status
from baseboard.testing import Simulation
from core.scheduler.bench import Bench
from core.simulation.texts import as_alone, run_alone, text


def test_it_ends_with_its_first_output_and_samples_nothing() -> None:
    sim = Simulation(16, 4)
    h = sim.submit(text(10), task="pool")
    plan = sim.step()
    assert (plan.tokens, plan.samples, plan.pools) == ({h.id: 10}, (0,), (h.id,))
    assert (h.status, h.finish_reason, h.tokens) == (Status.STOPPED, "stop", [])
    assert h.pooled == sim.solo_pooled(h)
    assert (sim.free_blocks, sim.stats.num_generated_tokens, sim.stats.num_prompt_tokens) == (16, 0, 10)
    assert sim.step().retired == (h.id,)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_prompt_in_chunks_is_pooled_once_with_its_last_one(depth: int) -> None:
    sim = Simulation(16, 4, max_num_batched_tokens=4, pipeline_depth=depth)
    h = sim.submit(text(10), task="pool")
    pools = [sim.step().pools for _ in range(6)]
    assert pools == [(), (), (h.id,), (), (), ()]
    assert h.pooled == sim.solo_pooled(h)


def test_a_hit_in_the_prefix_cache_changes_nothing() -> None:
    sim = Simulation(16, 4)
    generated = run_alone(sim, text(9), max_tokens=2)
    h, again = sim.submit(text(10), task="pool"), sim.submit(text(10), task="pool")
    sim.run()
    assert (h.num_cached_tokens, again.num_cached_tokens) == (8, 8)
    assert h.pooled == again.pooled == sim.solo_pooled(h)
    follower = sim.submit(text(10), max_tokens=3)
    sim.run()
    assert follower.num_cached_tokens == 8, "what a pooling request computes is published, too"
    assert as_alone(sim, generated, follower)


def test_one_token_is_enough_and_pooling_beside_generation_disturbs_nobody() -> None:
    sim = Simulation(16, 4)
    one, others = sim.submit([3], task="pool"), [sim.submit(text(5, key), max_tokens=5) for key in (1, 2)]
    sim.run()
    assert one.pooled == sim.solo_pooled(one)
    assert as_alone(sim, *others)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_value_under_way_counts_though_its_request_was_preempted(mode: str) -> None:
    sim = Simulation(16, 4, num_host_blocks=8, pipeline_depth=1)
    h = sim.submit(text(10), task="pool")
    other = sim.submit(text(5, 1), max_tokens=3)
    sim.step()
    sim.preempt(h, mode)
    sim.pause("all")
    sim.step()
    assert (h.finish_reason, h.pooled) == ("stop", sim.solo_pooled(h))
    sim.pause("none")
    sim.run()
    assert as_alone(sim, other)
    assert sim.free_host_blocks == 8


def test_a_value_that_comes_after_its_request_has_come_back_is_dropped() -> None:
    sim = Simulation(16, 4, pipeline_depth=3)
    h = sim.submit(text(10), task="pool")
    keeps_going = sim.submit(text(5, 1), max_tokens=9)
    sim.step()
    sim.preempt(h)
    sim.step()
    assert h.status is Status.RUNNING
    sim.run()
    assert h.pooled == sim.solo_pooled(h)
    assert sim.stats.stale_results == 1
    assert as_alone(sim, keeps_going)


def test_a_prompt_that_comes_in_pieces_is_pooled_when_it_is_whole() -> None:
    sim = Simulation(16, 4)
    h = sim.submit(text(6), task="pool", streaming=True)
    assert sim.step().pools == ()
    sim.add_input(h, text(5, 1))
    sim.step()
    sim.end_input(h)
    assert sim.step().pools == (h.id,)
    assert h.pooled == sim.solo_pooled(h)


def test_several_samples_of_one_value_are_refused() -> None:
    with pytest.raises(RequestRejected, match="n=2 samples of a pooled value would all be the same"):
        Simulation(16, 4).submit(text(4), task="pool", n=2)


def pooling_bench() -> Bench:
    bench = Bench()
    spec = RequestSpec("x", tuple(range(4)), SamplingParams(), 5, frozenset(), task=Task.POOL)
    bench.scheduler.add(spec)
    return bench


def test_an_executor_that_keeps_the_value_is_at_fault() -> None:
    bench = pooling_bench()
    plan = bench.scheduler.schedule()
    with pytest.raises(ContractError, match="'x' was to get a pooled value and got none"):
        bench.scheduler.commit(StepResult(plan.step, ((),)))


def test_a_row_that_failed_has_no_value_and_its_request_an_error() -> None:
    bench = pooling_bench()
    plan = bench.scheduler.schedule()
    result = StepResult(plan.step, ((),), failed={0: "no"})
    outcome = bench.scheduler.commit(result)
    assert [(r.id, r.error, r.pooled) for r in outcome.finished] == [("x", "no", None)]
