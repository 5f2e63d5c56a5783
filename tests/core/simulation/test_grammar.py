"""Constrained text: waits for its grammar, samples what is allowed, and takes nothing back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from baseboard.scheduler.stop import Repetition
from baseboard.testing import Simulation
from core.simulation.texts import as_alone, run_until, text

OPEN, CLOSE, COMMA = 90, 91, 92
DIGITS = frozenset(range(10))


def digits(count: int) -> Callable[[Sequence[int]], Sequence[int]]:
    """``[d,d,...,d]`` with ``count`` digits."""

    def allowed(outputs: Sequence[int]) -> Sequence[int]:
        at = len(outputs)
        if at == 0:
            return [OPEN]
        if at == 2 * count + 1:
            return []
        if at % 2 == 1:
            return sorted(DIGITS)
        return [CLOSE] if at == 2 * count else [COMMA]

    return allowed


def test_a_request_waits_for_its_grammar_and_takes_no_place_meanwhile() -> None:
    """Row 42, scenario 19."""
    sim = Simulation(64, 4, max_num_seqs=1)
    constrained = sim.submit(text(5), max_tokens=20, grammar=digits(3))
    other = sim.submit(text(5, 1), max_tokens=3)
    assert constrained.status == "waiting_for_grammar"
    assert sim.step().ids == (other.id,)
    sim.grammar_ready(constrained)
    sim.run()
    assert as_alone(sim, constrained, other)
    assert constrained.finish_reason == "stop"
    assert constrained.tokens[0] == OPEN
    assert constrained.tokens[-1] == CLOSE
    assert set(constrained.tokens[1::2]) - {CLOSE} <= DIGITS
    assert constrained.num_grammar_tokens == 7  # advanced once for each token, not again at the end


def test_a_grammar_that_does_not_compile_ends_its_request_though_no_place_is_free() -> None:
    """Scenario 19."""
    sim = Simulation(64, 4, max_num_seqs=1)
    other = sim.submit(text(5, 1), max_tokens=30)
    broken = sim.submit(text(5), grammar=digits(1))
    sim.step()
    sim.grammar_ready(broken, error="unbalanced bracket")
    assert broken.finish_reason == "error"
    assert broken.error == "unbalanced bracket"
    sim.run()
    assert as_alone(sim, other)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_the_matcher_stands_where_it_stood_after_a_preemption(mode: str) -> None:
    """Scenario 25 a."""
    sim = Simulation(64, 4, num_host_blocks=16, preemption=mode)
    constrained = sim.submit(text(5), max_tokens=20, grammar=digits(5))
    sim.grammar_ready(constrained)
    run_until(sim, constrained, 5)
    sim.preempt(constrained, mode=mode)
    sim.run()
    assert constrained.num_grammar_tokens == 11
    assert as_alone(sim, constrained)


def test_rejected_drafts_never_reach_the_matcher() -> None:
    """Scenario 25 b: three drafts each step, one accepted; the mask at each position is a fresh matcher's."""
    grammar = digits(4)
    sim = Simulation(64, 4, num_draft_tokens=3)
    constrained = sim.submit(text(5), max_tokens=20, grammar=grammar)
    sim.grammar_ready(constrained)
    sim.accept_drafts(constrained, [1] * 20)
    while constrained.finish_reason is None:
        accepted = constrained.tokens
        plan = sim.step()
        drafts = plan.drafts.get(constrained.id, ())
        masks = plan.masks.get(constrained.id, ())
        assert [set(mask) for mask in masks] == [set(grammar([*accepted, *drafts[:at]])) for at in range(len(masks))]
    assert constrained.num_grammar_tokens == len(constrained.tokens) == 9
    assert as_alone(sim, constrained)


def test_an_illegal_token_ends_only_its_own_request() -> None:
    """Scenario 25 e."""
    sim = Simulation(64, 4)
    constrained = sim.submit(text(5), max_tokens=20, grammar=digits(3))
    other = sim.submit(text(5, 1), max_tokens=6)
    sim.grammar_ready(constrained)
    sim.script(constrained, [OPEN, 55])
    sim.run()
    assert constrained.finish_reason == "error"
    assert "55" in str(constrained.error)
    assert constrained.tokens == [OPEN]
    assert as_alone(sim, other)


def test_a_stop_id_is_sampled_only_where_the_grammar_allows_it() -> None:
    """Scenario 26."""
    sim = Simulation(64, 4)
    constrained = sim.submit(text(5), max_tokens=20, grammar=digits(3), stop_token_ids=[55, CLOSE])
    sim.grammar_ready(constrained)
    sim.run()
    assert constrained.tokens[-1] == CLOSE
    assert len(constrained.tokens) == 7
    assert constrained.finish_reason == "stop"


def test_samples_have_matchers_of_their_own() -> None:
    sim = Simulation(64, 4)
    first = sim.submit(text(5), max_tokens=20, n=3, seed=4, grammar=digits(3))
    sim.grammar_ready(first)
    sim.run()
    assert as_alone(sim, *first.samples)
    assert len({tuple(sample.tokens) for sample in first.samples}) == 3
    assert [sample.num_grammar_tokens for sample in first.samples] == [7, 7, 7]


def test_a_constrained_request_is_not_planned_ahead_of_its_own_token() -> None:
    sim = Simulation(64, 4, pipeline_depth=2)
    constrained = sim.submit(text(5), max_tokens=20, grammar=digits(3))
    other = sim.submit(text(5, 1), max_tokens=9)
    sim.grammar_ready(constrained)
    sim.run()
    assert as_alone(sim, constrained, other)


def test_an_abort_while_waiting_for_a_grammar_leaves_nothing() -> None:
    sim = Simulation(64, 4)
    constrained = sim.submit(text(5), grammar=digits(3))
    sim.abort(constrained)
    sim.grammar_ready(constrained)
    assert constrained.finish_reason == "abort"
    assert sim.stats.tracked_requests == 0


def test_going_round_in_circles_ends_a_request_where_that_is_asked_for() -> None:
    """Row 20: off by default."""
    circle = [1, 2, 3] * 6
    for repetition, expected in ((None, 18), (Repetition(max_pattern=4, times=3), 9)):
        sim = Simulation(64, 4, repetition=repetition)
        handle = sim.submit(text(5), max_tokens=18)
        sim.script(handle, circle)
        sim.run()
        assert len(handle.tokens) == expected
        assert handle.finish_reason == ("length" if repetition is None else "repetition")
