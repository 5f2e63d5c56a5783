"""Row 21: what happens to a request, and when, by the injected clock."""

from __future__ import annotations

import pytest

from baseboard.request.request import Request
from baseboard.scheduler.events import EventLog, RequestEvent
from baseboard.scheduler.planner import Roles
from baseboard.scheduler.preemption import Recompute
from baseboard.scheduler.ranks import FirstComeFirstServed
from baseboard.testing import Handle, Simulation
from core.scheduler.bench import Bench
from core.simulation.texts import text


def seen(handle: Handle) -> list[tuple[str, float]]:
    return [(event.kind.value, event.at) for event in handle.events]


def test_a_plain_life_in_seconds_of_the_injected_clock() -> None:
    sim = Simulation(16, 4)
    sim.tick(1.5)
    h = sim.submit(text(5), max_tokens=3)
    for _ in range(3):
        sim.tick(1)
        sim.step()
    assert seen(h) == [("queued", 1.5), ("scheduled", 2.5), ("first_token", 2.5), ("finished", 4.5)]
    assert h.events[-1] == RequestEvent(h.id, h.events[-1].kind, 4.5, "length")
    assert [event.reason for event in h.events[:-1]] == [None] * 3


@pytest.mark.parametrize(("mode", "kind"), [("recompute", "preempted"), ("swap", "swapped")])
def test_a_preemption_and_the_way_back(mode: str, kind: str) -> None:
    sim = Simulation(16, 4, num_host_blocks=8)
    h = sim.submit(text(5), max_tokens=3)
    sim.step()
    sim.tick(1)
    sim.preempt(h, mode)
    sim.tick(1)
    sim.step()
    sim.step()
    sim.step()
    assert seen(h) == [
        ("queued", 0),
        ("scheduled", 0),
        ("first_token", 0),
        (kind, 1),
        ("scheduled", 2),
        ("finished", 2),
    ]


def test_the_first_token_comes_before_the_end_even_where_it_is_the_end() -> None:
    sim = Simulation(16, 4)
    h = sim.submit(text(5), max_tokens=1)
    sim.run()
    assert [kind for kind, _ in seen(h)] == ["queued", "scheduled", "first_token", "finished"]


def test_who_ends_without_a_token_never_had_a_first_one() -> None:
    sim = Simulation(16, 4)
    h, gone = sim.submit(text(5), max_tokens=1), sim.submit(text(5, 1))
    sim.abort(h)
    sim.give_up(gone)
    assert [kind for kind, _ in seen(h)] == ["queued", "finished"]
    assert [(h.finish_reason, h.events[-1].reason) for h in (h, gone)] == [("abort", "abort"), ("ignored", "ignored")]


def test_samples_and_forks_have_events_of_their_own() -> None:
    """A fork begins with its parent's outputs: its first token is the first of its own."""
    sim = Simulation(32, 4)
    h = sim.submit(text(5), max_tokens=4, n=2, seed=1)
    sim.step()
    second = h.samples[1]
    assert [kind for kind, _ in seen(second)] == ["queued", "scheduled", "first_token"]
    child = sim.fork(h)
    assert [kind for kind, _ in seen(child)] == ["queued", "scheduled"]
    sim.step()
    assert [kind for kind, _ in seen(child)] == ["queued", "scheduled", "first_token"]


def test_events_are_taken_once_and_in_order() -> None:
    now = [0.0]
    log = EventLog(lambda: now[0])
    bench = Bench(Roles(FirstComeFirstServed(), Recompute(), recorder=log))
    bench.add("x", range(4), max_tokens=1)
    bench.add("y", range(9, 13), max_tokens=2)
    assert [(event.request_id, event.kind.value) for event in log.take()] == [("x", "queued"), ("y", "queued")]
    bench.step()
    assert [(event.request_id, event.kind.value) for event in log.events] == [
        ("x", "scheduled"),
        ("y", "scheduled"),
        ("x", "first_token"),
        ("x", "finished"),
        ("y", "first_token"),
    ]
    assert len(log.take()) == 5
    assert log.take() == ()


def test_nobody_is_told_where_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs nothing when it is not in use: no listener hangs on any request."""
    seen: list[Request] = []
    monkeypatch.setattr(EventLog, "changed", lambda self, request, event: seen.append(request))
    bench = Bench()
    request = bench.add("x", range(4), max_tokens=2)
    while bench.scheduler.num_unfinished:
        bench.step()
    assert (request.listener, seen) == (None, [])
