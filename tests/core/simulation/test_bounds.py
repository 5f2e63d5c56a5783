"""How long anybody waits: the bounds of docs/scheduling.md, against arrivals that are as inconvenient as can be."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from baseboard.request.status import Status
from baseboard.scheduler.ranks import AGING_STEP
from baseboard.testing import Handle, Simulation
from core.scheduling.plugins import PolicyPlugin, registry
from core.simulation.texts import as_alone, text


@dataclass
class Waiting:
    """A request, and by which step the bound says that it has its first token."""

    handle: Handle
    due: int


def work(handle: Handle) -> int:
    """Steps that a request needs at most once it is the best: a token in each."""
    return handle.request.max_total


def total_work(handles: list[Handle]) -> int:
    return sum(work(handle) for handle in handles if not handle.finish_reason)


def draw(rng: Random, key: int) -> dict[str, object]:
    return {"prompt": text(rng.randint(1, 12), key), "max_tokens": rng.randint(1, 8)}


def overdue(sim: Simulation, waiting: list[Waiting], step: int) -> list[Handle]:
    return [each.handle for each in waiting if not each.handle.tokens and step >= each.due]


TIGHT = [
    {"max_num_batched_tokens": 1},
    {"max_num_batched_tokens": 3, "max_num_seqs": 2},
    {"max_num_batched_tokens": 16, "preemption": "swap", "num_host_blocks": 16},
    {"max_num_batched_tokens": 16, "preemption": "recompute", "long_prefill_token_threshold": 2},
    {"max_num_batched_tokens": 16, "chunked_prefill": False, "prefix_caching": False},
]  # fmt: skip


def fcfs_is_late(sim: Simulation, seed: int) -> bool:
    """Whether anybody gets the first token later than those before it, and its own prompt, take one by one."""
    rng = Random(seed)
    handles: list[Handle] = []
    waiting: list[Waiting] = []
    for step in range(2000):
        if step < 30:
            for _ in range(rng.randint(0, 2)):
                before = total_work(handles)
                handles.append(sim.submit(**draw(rng, len(handles))))  # pyright: ignore[reportArgumentType]
                waiting.append(Waiting(handles[-1], step + before + handles[-1].request.num_prompt))
        if not sim.stats.tracked_requests and step >= 30:
            break
        sim.step()
        if overdue(sim, waiting, step):
            return True
    assert as_alone(sim, *handles)
    return False


@pytest.mark.parametrize("settings", TIGHT, ids=range(5))
@pytest.mark.parametrize("seed", range(6))
def test_first_come_first_served_waits_for_those_before_it_and_no_longer(settings, seed: int) -> None:
    """Scenario 7. Whatever comes later, however the pool is fought over."""
    assert not fcfs_is_late(Simulation(6, 4, **settings), seed)


def test_the_bound_of_first_come_first_served_does_not_hold_for_last_come_first_served() -> None:
    """So the check above can fail."""

    class Backwards:
        def key(self, spec):
            return (-spec.arrival,)

    found = registry(lcfs=PolicyPlugin(Backwards()))
    sims = [Simulation(6, 4, policy="lcfs", max_num_batched_tokens=3, max_num_seqs=2, registry=found) for _ in range(6)]
    assert any(fcfs_is_late(sim, seed) for seed, sim in enumerate(sims))


@pytest.mark.parametrize("settings", TIGHT, ids=range(5))
@pytest.mark.parametrize("seed", range(4))
def test_the_most_important_wait_for_those_who_run_and_for_each_other(settings, seed: int) -> None:
    """A flood of unimportant requests delays an important one by what runs or sits swapped when it comes."""
    rng = Random(seed)
    sim = Simulation(6, 4, policy="priority", **settings)
    flood: list[Handle] = []
    important: list[Handle] = []
    waiting: list[Waiting] = []
    for step in range(2000):
        if step < 60:
            flood.append(sim.submit(**draw(rng, step), priority=rng.randint(1, 3)))  # pyright: ignore[reportArgumentType]
            if step % 7 == 5:
                holding = [h for h in flood if h.status in {Status.RUNNING, Status.SWAPPED}]
                before = total_work(holding) + total_work(important)
                important.append(sim.submit(**draw(rng, 100 + step), priority=0))  # pyright: ignore[reportArgumentType]
                waiting.append(Waiting(important[-1], step + before + important[-1].request.num_prompt))
        sim.step()
        assert not overdue(sim, waiting, step)
        if step >= 60 and not sim.stats.tracked_requests:
            break
    assert as_alone(sim, *flood, *important)


def test_strict_priority_starves_the_others_by_design() -> None:
    sim = Simulation(16, 4, policy="priority", max_num_seqs=1)
    low = sim.submit(text(4), max_tokens=2, priority=1)
    sim.submit(text(4, 1), max_tokens=2)
    for at in range(200):
        sim.submit(text(4, 2 + at), max_tokens=2)
        sim.step()
    assert not low.tokens


@pytest.mark.parametrize("steps_of_priority", [1, 2])
def test_under_aging_a_request_is_overtaken_a_stated_number_of_times(steps_of_priority: int) -> None:
    """By fewer than AGING_STEP later ones for each step of priority, and by as many where so many come."""
    sim = Simulation(16, 4, policy="aging", max_num_seqs=1)
    first = sim.submit(text(4), max_tokens=2)
    low = sim.submit(text(4, 1), max_tokens=2, priority=steps_of_priority)
    later = []
    while not low.tokens:
        later.append(sim.submit(text(4, 2 + len(later)), max_tokens=2))
        sim.step()
    overtaking = [handle for handle in later if handle.tokens]
    assert len(overtaking) == AGING_STEP * steps_of_priority - 1
    sim.run()
    assert as_alone(sim, first, low)


def test_under_aging_the_more_important_of_two_that_come_together_is_first() -> None:
    sim = Simulation(16, 4, policy="aging", max_num_seqs=1)
    low, high = sim.submit(text(4), max_tokens=1, priority=1), sim.submit(text(4, 1), max_tokens=1, priority=0)
    assert sim.step().ids == (high.id,)
    assert sim.step().ids == (low.id,)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("seed", range(6))
def test_who_sits_swapped_comes_back_when_those_who_run_have_ended(policy: str, seed: int) -> None:
    """Whatever comes meanwhile, however important: nothing is let in before."""
    rng = Random(seed)
    sim = Simulation(8, 4, policy=policy, preemption="swap", num_host_blocks=24)
    handles: list[Handle] = []
    due: dict[str, int] = {}
    swapped_ever = 0
    for step in range(2000):
        if step < 80:
            handles.append(sim.submit(**draw(rng, step), priority=80 - step))  # pyright: ignore[reportArgumentType]
        sim.step()
        swapped = [handle for handle in handles if handle.status is Status.SWAPPED]
        for handle in swapped:
            running = [other for other in handles if other.status is Status.RUNNING]
            due.setdefault(handle.id, step + total_work([handle, *running]))
            assert step <= due[handle.id]
        for name in set(due) - {handle.id for handle in swapped}:
            swapped_ever += 1
            del due[name]
        if step >= 80 and not sim.stats.tracked_requests:
            break
    assert swapped_ever
    assert as_alone(sim, *handles)


def test_the_nth_adapter_that_is_held_back_waits_n_times_as_long_at_most() -> None:
    """Patience of 16 steps, one to see it, and the 10 of the longest request: for each that is before it."""
    sim = Simulation(2000, 4, max_loras=2, max_num_seqs=256)
    starved: list[Handle] = []
    for at in range(150):
        for name in ("a1", "a2"):
            sim.submit(text(4, 3 * at), max_tokens=10, adapter=name)
        if at == 0:
            starved = [sim.submit(text(3, 900 + n), max_tokens=10, adapter=f"b{n}") for n in range(3)]
        sim.step()
        for nth, handle in enumerate(starved, 1):
            assert handle.tokens or at <= nth * (16 + 1 + 10), f"number {nth} waits since {at} steps"
    sim.run()
    assert as_alone(sim, *starved)


def test_who_is_passed_over_by_a_gate_keeps_its_place() -> None:
    """First come first served with skipping: once the gate lets it in, it is before all who came later."""
    sim = Simulation(64, 4, max_loras=1, max_num_seqs=2)
    holder = sim.submit(text(4), max_tokens=4, adapter="x")
    held = sim.submit(text(4, 1), max_tokens=2, adapter="y")
    passing = [sim.submit(text(4, 2 + at), max_tokens=2) for at in range(4)]
    while not holder.finish_reason:
        assert held.id not in sim.step().ids
    assert held.id in sim.step().ids
    sim.run()
    assert as_alone(sim, holder, held, *passing)
