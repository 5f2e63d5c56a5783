"""Rows 51 and 53: several clients, trace contexts, and what a connector says at the end."""

from __future__ import annotations

from baseboard.testing import Simulation
from core.scheduler.bench import Bench
from core.simulation.texts import as_alone, run_until, text


def test_each_client_gets_its_own_outputs() -> None:
    sim = Simulation(32, 4, pipeline_depth=1)
    handles = [sim.submit(text(5, key), max_tokens=3 + key, client=key % 2, n=1 + key % 2, seed=1) for key in range(4)]
    sim.run()
    for client in (0, 1):
        own = [sample for h in handles if h.request.spec.caller.client == client for sample in h.samples]
        assert sim.delivered(client) == {sample.id: sample.tokens for sample in own}
    assert sim.delivered(7) == {}
    assert as_alone(sim, *[sample for h in handles for sample in h.samples])


def test_an_outcome_is_split_in_columns_that_fit_together() -> None:
    """Two clients in one step: tokens, rows, forks and ends all go to the one they belong to."""
    bench = Bench()
    bench.add("a", range(4), max_tokens=1, client=0)
    bench.add("b", range(10, 14), max_tokens=2, client=5, n=2, temperature=1.0)
    plan, result = bench.plan()
    outcome = bench.scheduler.commit(result)
    parts = outcome.by_client()
    assert sorted(parts) == [0, 5]
    mine, theirs = parts[0], parts[5]
    assert ([r.id for r in mine.requests], mine.rows, mine.forks) == (["a"], [0], [])
    assert [r.id for r in mine.finished] == ["a"]
    assert sorted(r.id for r in theirs.requests) == ["b", "b#1"]
    assert (theirs.rows, [fork.child.id for fork in theirs.forks], theirs.finished) == ([1, 1], ["b#1"], [])
    tokens = {r.id: token for r, token in zip(theirs.requests, theirs.tokens, strict=True)}
    assert (tokens["b"], tokens["b#1"]) == result.sampled[plan.ids.index("b")]
    assert mine.result is theirs.result is result


def test_a_trace_context_travels_with_the_request_and_all_that_is_forked_off_it() -> None:
    sim = Simulation(32, 4)
    context = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    h = sim.submit(text(5), max_tokens=6, n=2, seed=1, client=3, trace=context)
    run_until(sim, h, 2)
    child = sim.fork(h)
    sim.run()
    assert [each.request.spec.caller.trace for each in (*h.samples, child)] == [context] * 3
    assert set(sim.delivered(3)) == {h.id, h.samples[1].id, child.id}


def test_what_the_connector_says_comes_back_at_the_end() -> None:
    """Row 53: what was given at the start reaches the connector, and its answer comes with the finished request."""
    sim = Simulation(16, 4)
    h, other = (
        sim.submit(text(6, key), max_tokens=3, kv_transfer={"to": "decode-7"} if not key else None) for key in (0, 1)
    )
    sim.connector.store(h, latency=2)
    assert h.kv_transfer is None
    sim.run()
    assert h.kv_transfer == {"to": "decode-7", "ticket": h.id, "num_tokens": 8}
    assert other.kv_transfer is None
    assert as_alone(sim, h, other)
