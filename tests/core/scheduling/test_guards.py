"""A plugin that raises, answers nonsense or reaches for what is not its own: the request that it was asked about ends
with an error that names the plugin, and everybody else gets the tokens that they get alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from baseboard.request.status import Status
from baseboard.scheduler.config import SchedulerConfig
from baseboard.scheduler.policy import Policy, make_roles
from baseboard.scheduling import Event, How, RequestView, StepView, Verdict
from baseboard.testing import Handle, Simulation
from baseboard.testing.simulation import FixedCosts
from core.scheduler.bench import Bench
from core.scheduling.plugins import Arrivals, ExtensionPlugin, PolicyPlugin, PreemptionPlugin, registry
from core.simulation.texts import as_alone, text

BAD = "bad"  #: the id of the request that plugins stumble over


def stumble(answer: Any, otherwise: Any) -> Callable[..., Any]:
    """A method that does ``answer`` (calls it, raises it, or gives it) for the bad request, else ``otherwise``."""

    def method(_self: object, request: Any, *others: Any) -> Any:
        if request.id != BAD:
            return otherwise(request, *others) if callable(otherwise) else otherwise
        if isinstance(answer, BaseException):
            raise answer
        return answer(request, *others) if callable(answer) else answer

    return method


def role(**methods: Any) -> Any:
    return type("Role", (), methods)()


def play(
    sim: Simulation, error: str, prepare: Callable[[Simulation], None] = lambda _sim: None, **bad: Any
) -> list[Handle]:
    """The bad request among three others: how it ends and that nothing else is touched."""
    before, middle = sim.submit(text(9), max_tokens=6), sim.submit(text(5, 1), max_tokens=6)
    it = sim.submit(text(7, 2), max_tokens=6, request_id=BAD, **bad)
    after = sim.submit(text(6, 3), max_tokens=6)
    prepare(sim)
    sim.run()
    assert it.finish_reason == "error"
    assert it.error is not None
    assert it.error.startswith("scheduling plugin 'x' failed in ")
    assert error in it.error
    others = [before, middle, after]
    assert [other.finish_reason for other in others] == ["length"] * 3
    assert as_alone(sim, *others)
    assert it.tokens == sim.solo(it)[: len(it.tokens)]
    sim.step()
    assert (sim.free_blocks, sim.device.num_rows) == (64, 0)
    assert sim.scheduler.stats.num_policy_faults >= 1
    late = sim.submit(text(4, 4), max_tokens=3)  # the engine goes on
    sim.run()
    assert as_alone(sim, late)
    return others


def mutate(name: str, value: Any = 0) -> Callable[..., Any]:
    def change(request: Any, *_others: Any) -> None:
        setattr(request, name, value)

    return change


def in_step(change: Callable[[StepView], None]) -> Callable[..., Any]:
    return lambda _request, step: change(step)


# --- rank -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ZeroDivisionError("weight"), "Rank.key: ZeroDivisionError: weight"),
        (SystemExit(1), "Rank.key: SystemExit: 1"),
        (None, "it gave None, not a tuple of numbers"),
        (3, "it gave 3, not a tuple of numbers"),
        ([1], "it gave [1], not a tuple of numbers"),
        ((1, "a"), "it gave (1, 'a'), which is not all numbers that can be ordered"),
        ((math.nan,), "it gave (nan,), which is not all numbers that can be ordered"),
        ((None,), "it gave (None,), which is not all numbers"),
        (mutate("priority"), "cannot assign to field 'priority'"),
    ],
)
@pytest.mark.parametrize("n", [1, 3])
def test_a_rank_that_fails_ends_the_request_when_it_arrives(answer: Any, said: str, n: int) -> None:
    key = stumble(answer, lambda spec: (spec.arrival,))
    sim = Simulation(64, 4, policy="x", registry=registry(x=PolicyPlugin(role(key=key))))
    it = sim.submit(text(3, 9), max_tokens=2, request_id=BAD, n=n)
    assert it.finish_reason == "error"
    sim.run()
    play(sim, said, n=n)


def test_a_rank_that_fails_on_a_fork_ends_the_fork() -> None:
    def key(_self: object, spec: Any) -> tuple[int, ...]:
        if "fork" in spec.id:
            raise ValueError("no forks")
        return (spec.arrival,)

    sim = Simulation(64, 4, policy="x", registry=registry(x=PolicyPlugin(role(key=key))))
    parent = sim.submit(text(9), max_tokens=6)
    sim.step()
    child = sim.fork(parent)
    assert (child.finish_reason, child.error) == (
        "error",
        "scheduling plugin 'x' failed in Rank.key: ValueError: no forks",
    )
    sim.run()
    assert as_alone(sim, parent)


def test_equal_keys_are_ordered_by_arrival() -> None:
    sim = Simulation(64, 4, policy="x", max_num_seqs=2, registry=registry(x=PolicyPlugin(role(key=lambda *_: (7,)))))
    handles = [sim.submit(text(4, at), max_tokens=3, n=1 + at % 2) for at in range(5)]
    started: list[Handle] = []
    while sim.stats.tracked_requests:
        ids = sim.step().ids
        started += [h for h in handles if h.id in ids and h not in started]
    assert started == handles
    assert as_alone(sim, *[sample for h in handles for sample in h.samples])


def test_keys_of_any_length_and_size_can_be_compared() -> None:
    keys = iter([(), (1.5,), (1.5, 2), (-math.inf,), (10**30, 1), (True,)])
    plugin = PolicyPlugin(role(key=lambda *_: next(keys)))
    sim = Simulation(64, 4, policy="x", registry=registry(x=plugin))
    handles = [sim.submit(text(4, at), max_tokens=3) for at in range(6)]
    sim.run()
    assert as_alone(sim, *handles)


# --- limit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (RuntimeError("lost count"), "Limit.clip: RuntimeError: lost count"),
        (lambda _r, want, _b: want + 1, "it gave 8, not a whole number from 0 to 7"),
        (-1, "it gave -1, not a whole number from 0 to 7"),
        (2.0, "it gave 2.0, not a whole number from 0 to 7"),
        (True, "it gave True, not a whole number from 0 to 7"),
        (None, "it gave None, not a whole number from 0 to 7"),
        (mutate("num_computed"), "RequestView.num_computed cannot be set to 0: roles decide and change nothing"),
        (mutate("_request"), "RequestView._request cannot be set"),
        (mutate("anything"), "RequestView.anything cannot be set"),
        (lambda r, *_: r.spec.prompt.append(1), "AttributeError: 'tuple' object has no attribute 'append'"),
        (lambda r, *_: setattr(r.spec, "max_total", 99), "cannot assign to field 'max_total'"),
        (lambda r, *_: r.__delattr__("status"), "RequestView.status cannot be deleted"),
    ],
)
def test_a_limit_that_fails_ends_the_request(answer: Any, said: str, depth: int) -> None:
    plugin = ExtensionPlugin(limits=[role(clip=stumble(answer, lambda _r, want, _b: want))])
    play(Simulation(64, 4, extensions=["x"], pipeline_depth=depth, registry=registry(x=plugin)), said)


def test_a_limit_that_fails_later_ends_a_request_that_runs() -> None:
    """It is asked again where the cheap next token does not do: at every new block."""

    def clip(request: RequestView, want: int, _budget: int) -> int:
        if request.num_outputs:
            raise ValueError("too late")
        return want

    plugin = ExtensionPlugin(limits=[role(clip=stumble(clip, lambda _r, want, _b: want))])
    play(Simulation(64, 4, extensions=["x"], registry=registry(x=plugin)), "Limit.clip: ValueError: too late")


def test_changing_a_copy_changes_nothing() -> None:
    """The one mapping that a request has is copied for each who looks; tokens are copied always."""

    def clip(_self: object, request: RequestView, want: int, _budget: int) -> int:
        if request.spec.params.logit_bias is not None:
            request.spec.params.logit_bias.clear()  # pyright: ignore[reportAttributeAccessIssue]
        assert request.tokens == request.last(request.num_tokens)
        return want

    numbers = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8, max_model_len=256, pool_tokens=64)
    plugin = ExtensionPlugin(limits=[role(clip=clip)])
    roles = make_roles(Policy(extensions=("x",)), numbers, FixedCosts(), registry(x=plugin))
    bench = Bench(roles)
    request = bench.add("a", range(6), logit_bias={3: 1.0})
    bench.step()
    assert request.spec.params.logit_bias == {3: 1.0}
    assert request.num_outputs == 1


# --- gate, observer, stop rule --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (OSError("clock"), "Gate.check: OSError: clock"),
        (None, "it gave None, not Verdict"),
        ("admit", "it gave 'admit', not Verdict"),
        (in_step(lambda step: setattr(step, "now", 1.0)), "StepView.now cannot be set to 1.0"),
        (in_step(lambda step: step.running.clear()), "'tuple' object has no attribute 'clear'"),
        (in_step(lambda step: step.waiting[0].spec.stop_ids.add(1)), "'frozenset' object has no attribute 'add'"),
    ],
)
def test_a_gate_that_fails_ends_the_request(answer: Any, said: str) -> None:
    plugin = ExtensionPlugin(gates=[role(check=stumble(answer, Verdict.ADMIT))])
    play(Simulation(64, 4, extensions=["x"], registry=registry(x=plugin)), said)


@pytest.mark.parametrize("depth", [0, 2])
def test_an_observer_that_fails_ends_the_request_that_was_let_in(depth: int) -> None:
    watching = role(begin_step=lambda *_: None, admitted=stumble(LookupError("who?"), None))
    sim = Simulation(
        64, 4, extensions=["x"], pipeline_depth=depth, registry=registry(x=ExtensionPlugin(observers=[watching]))
    )
    play(sim, "Observer.admitted: LookupError: who?")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (RuntimeError("regex"), "StopRule.check: RuntimeError: regex"),
        (True, "it gave True, not None, STOP, REACH_LIMIT or REPEAT"),
        (Event.PREEMPT, "not None, STOP, REACH_LIMIT or REPEAT"),
        (Event.FAIL, "not None, STOP, REACH_LIMIT or REPEAT"),
        (lambda request: request.tokens.append(1), "'tuple' object has no attribute 'append'"),
    ],
)
@pytest.mark.parametrize("depth", [0, 2])
def test_a_stop_rule_that_fails_ends_the_request(answer: Any, said: str, depth: int) -> None:
    plugin = ExtensionPlugin(stops=[role(check=stumble(answer, None))])
    play(Simulation(64, 4, extensions=["x"], pipeline_depth=depth, registry=registry(x=plugin)), said)


def test_a_stop_rule_of_another_party_ends_texts() -> None:
    def check(_self: object, request: RequestView) -> Event | None:
        return Event.STOP if request.last(2) == (5, 6) else None

    sim = Simulation(64, 4, extensions=["x"], registry=registry(x=ExtensionPlugin(stops=[role(check=check)])))
    handle = sim.submit(text(6), max_tokens=9)
    sim.script(handle, [1, 5, 5, 6, 2])
    sim.run()
    assert (handle.tokens, handle.finish_reason) == ([1, 5, 5, 6], "stop")


def test_a_gate_and_a_limit_of_another_party_are_asked_beside_the_built_in_ones() -> None:
    gate = role(check=lambda _s, r, step: Verdict.PASS_OVER if r.spec.tenant and step.now < 5.0 else Verdict.ADMIT)
    limit = role(clip=lambda _s, _r, want, _b: min(want, 3))
    found = registry(hours=ExtensionPlugin(gates=[gate]), small=ExtensionPlugin(limits=[limit]))
    sim = Simulation(64, 4, extensions=["hours", "small"], long_prefill_token_threshold=4, registry=found)
    held, free = sim.submit(text(8), max_tokens=2, tenant="t"), sim.submit(text(8, 1), max_tokens=2)
    assert sim.step().tokens == {free.id: 3}
    sim.tick(5.0)
    assert sim.step().tokens == {free.id: 3, held.id: 3}
    sim.run()
    assert as_alone(sim, held, free)


# --- preemption -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (RuntimeError("cost"), "Preemption.choose: RuntimeError: cost"),
        ("swap", "it gave 'swap', not How"),
        (None, "it gave None, not How"),
        (lambda request, _n: setattr(request.spec, "id", "z"), "cannot assign to field 'id'"),
    ],
)
def test_a_preemption_that_fails_ends_the_victim(answer: Any, said: str, depth: int) -> None:
    """7 blocks of 4: A (8 tokens) and the bad one (8) hold 2 each; at 17 and 13 tokens one more is not there."""
    plugin = PreemptionPlugin(role(choose=stumble(answer, How.SWAP)))
    sim = Simulation(7, 4, num_host_blocks=8, preemption="x", pipeline_depth=depth, registry=registry(x=plugin))
    first, it = sim.submit(text(8), max_tokens=12), sim.submit(text(8, 1), max_tokens=12, request_id=BAD)
    sim.run()
    assert (first.finish_reason, it.finish_reason) == ("length", "error")
    assert it.error is not None
    assert it.error.startswith("scheduling plugin 'x' failed in ")
    assert said in it.error
    assert as_alone(sim, first)
    assert (sim.free_blocks, sim.free_host_blocks) == (7, 8)


@pytest.mark.parametrize(("how", "status"), [(How.SWAP, Status.SWAPPED), (How.RECOMPUTE, Status.PREEMPTED)])
def test_a_preemption_of_another_party_chooses_and_the_core_does_it(how: How, status: Status) -> None:
    asked = []

    def choose(_self: object, request: RequestView, num_blocks: int) -> How:
        asked.append((request.id, num_blocks, request.num_computed))
        return how

    found = registry(x=PreemptionPlugin(role(choose=choose)))
    sim = Simulation(6, 4, num_host_blocks=8, preemption="x", prefix_caching=False, registry=found)
    first, second = sim.submit(text(8), max_tokens=12), sim.submit(text(8, 1), max_tokens=12)
    while not second.num_preemptions:
        sim.step()
    assert asked == [(second.id, 3, 12)]
    assert second.status is status
    sim.run()
    assert as_alone(sim, first, second)


# --- what is about everybody ----------------------------------------------------------------------------------------


def twice(turn: Any) -> None:
    turn.serve_running()
    turn.serve_running()


def late(turn: Any) -> None:
    turn.serve_waiting()
    turn.serve_running()


def raising(turn: Any) -> None:
    turn.serve_running()
    turn.serve_waiting()
    raise RuntimeError("mid-way")


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        (twice, "it served the running twice in one step"),
        (late, "it served the running after others in the same step"),
        (raising, "RuntimeError: mid-way"),
        (lambda turn: turn.serve_everybody(), "has no attribute 'serve_everybody'"),
    ],
)
@pytest.mark.parametrize("depth", [0, 2])
def test_an_order_that_fails_ends_everybody_in_line(serve: Callable[[Any], None], said: str, depth: int) -> None:
    broken = [True]
    order = role(serve=lambda _self, turn: serve(turn) if broken[0] else raising_nothing(turn))
    sim = Simulation(64, 4, policy="x", pipeline_depth=depth, registry=registry(x=PolicyPlugin(order=order)))
    parked = sim.submit(text(4), max_tokens=2, grammar=lambda _out: range(5))
    handles = [sim.submit(text(6, at), max_tokens=4) for at in range(3)]
    sim.step()
    assert [handle.finish_reason for handle in handles] == ["error"] * 3
    assert all(
        said in (handle.error or "") and "'x' failed in Order.serve" in (handle.error or "") for handle in handles
    )
    assert parked.finish_reason is None
    broken[0] = False
    sim.grammar_ready(parked)
    later = sim.submit(text(5, 5), max_tokens=4)
    sim.run()
    assert as_alone(sim, parked, later)
    assert sim.free_blocks == 64


def raising_nothing(turn: Any) -> None:
    turn.serve_running()
    if not turn.preempted:
        turn.serve_swapped()
        turn.serve_waiting()


def test_an_order_lets_nobody_in_where_blocks_were_taken() -> None:
    def serve(turn: Any) -> None:
        turn.serve_running()
        turn.serve_swapped()
        turn.serve_waiting()

    found = registry(x=PolicyPlugin(order=role(serve=lambda _self, turn: serve(turn))))
    sim = Simulation(6, 4, num_host_blocks=8, policy="x", preemption="swap", registry=found)
    handles = [sim.submit(text(8, at), max_tokens=12) for at in range(2)]
    sim.run()
    assert [handle.finish_reason for handle in handles] == ["error", "error"]
    assert "it served the swapped in a step that took blocks from somebody" in (handles[0].error or "")
    assert (sim.free_blocks, sim.free_host_blocks) == (6, 8)


def test_an_observer_that_fails_before_a_step_ends_everybody_in_line() -> None:
    def begin_step(_self: object, step: StepView) -> None:
        if len(step.running) == 2:
            raise ValueError("two are too many")

    watching = role(begin_step=begin_step, admitted=lambda *_: None)
    sim = Simulation(64, 4, extensions=["x"], registry=registry(x=ExtensionPlugin(observers=[watching])))
    both = [sim.submit(text(6, at), max_tokens=4) for at in range(2)]
    sim.run()
    assert [handle.finish_reason for handle in both] == ["error"] * 2
    alone = sim.submit(text(6, 4), max_tokens=4)
    sim.run()
    assert as_alone(sim, alone)


def test_ctrl_c_is_not_a_plugins_failure() -> None:
    plugin = ExtensionPlugin(gates=[role(check=stumble(KeyboardInterrupt(), Verdict.ADMIT))])
    sim = Simulation(64, 4, extensions=["x"], registry=registry(x=plugin))
    sim.submit(text(4), request_id=BAD)
    with pytest.raises(KeyboardInterrupt):
        sim.step()


def test_built_in_roles_are_not_wrapped() -> None:
    sim = Simulation(64, 4, registry=registry(x=PolicyPlugin()))
    roles = sim.scheduler._planner._roles  # pyright: ignore[reportPrivateUsage]
    for part in (roles.rank, roles.order, roles.preemption, *roles.limits, *roles.gates):
        assert type(part).__module__.startswith("baseboard.scheduler.")


# --- views ----------------------------------------------------------------------------------------------------------


def test_views_show_the_request_as_it_is_now_and_are_equal() -> None:
    seen: list[RequestView] = []

    def clip(_self: object, request: RequestView, want: int, _budget: int) -> int:
        seen.append(request)
        return min(want, 4)

    found = registry(x=ExtensionPlugin(limits=[role(clip=clip)]), y=PolicyPlugin(Arrivals()))
    sim = Simulation(64, 4, policy="y", extensions=["x"], registry=found)
    handle = sim.submit(text(6), max_tokens=3, n=2, tenant="t")
    sim.step()
    view = seen[0]
    assert (view.id, view.spec.tenant, view.status, view.rank) == (handle.id, "t", Status.RUNNING, (0, 0, 0))
    assert (view.num_tokens, view.num_computed, view.num_samples, view.num_outputs) == (6, 4, 2, 0)
    sim.step()
    assert (view.num_tokens, view.num_computed, view.num_samples, view.num_outputs) == (7, 6, 1, 1)
    assert view.tokens == (*text(6), handle.tokens[0])
    assert (view.last(2), view.last(0), view.last(99)) == (view.tokens[-2:], (), view.tokens)
    assert len({view, seen[1]}) == 1
    assert view != handle.request
    assert view.num_preemptions == 0
    sim.run()
