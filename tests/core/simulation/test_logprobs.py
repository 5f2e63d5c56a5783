"""Row 50: log-probabilities of prompts and outputs, whatever happens on the way."""

from __future__ import annotations

import math

import pytest

from baseboard.testing import Handle, Simulation
from baseboard.testing.model import VOCABULARY, token_logprobs
from core.simulation.texts import as_alone, run_alone, text


def as_in_a_text_of_its_own(sim: Simulation, handle: Handle) -> bool:
    """Each output's, as the prompt position of the whole text tells it."""
    whole = Simulation(64, 16).submit([*handle.request.prompt, *handle.tokens], max_tokens=1, prompt_logprobs=2)
    expected = whole._simulation.solo_prompt_logprobs(whole)[handle.request.num_prompt :]
    return list(handle.logprobs) == expected


@pytest.mark.parametrize("how", ["cold", "warm", "in chunks", "preempted", "in pieces"])
def test_prompt_logprobs_are_the_same_however_the_prompt_was_computed(how: str) -> None:
    """Scenario 88: P=40, B=16; one entry a token, the first empty. What is cached is not hit, but computed again."""
    prompt = text(40)
    sim = Simulation(16, 16, max_num_batched_tokens=16 if how in {"in chunks", "preempted"} else 64)
    if how == "warm":
        run_alone(sim, prompt)
        assert sim.cached_blocks == 2
    h = sim.submit(
        prompt[:20] if how == "in pieces" else prompt, max_tokens=3, prompt_logprobs=2, streaming=how == "in pieces"
    )
    sim.step()
    if how == "preempted":
        sim.step()
        assert h.num_computed_tokens == 32
        sim.preempt(h)
    if how == "in pieces":
        sim.add_input(h, prompt[20:])
        sim.end_input(h)
    sim.run()
    assert h.num_cached_tokens == 0
    assert h.prompt_logprobs == sim.solo_prompt_logprobs(h)
    assert (len(h.prompt_logprobs), h.prompt_logprobs[0]) == (40, None)
    assert as_alone(sim, h)


@pytest.mark.parametrize("settings", [{}, {"pipeline_depth": 2}, {"num_draft_tokens": 3}, {"reverse_rows": True}])
def test_each_output_has_its_own(settings: dict[str, int]) -> None:
    sim = Simulation(32, 4, **settings)
    h, other = sim.submit(text(9), max_tokens=7, logprobs=2), sim.submit(text(9, 1), max_tokens=4)
    sim.accept_drafts(h, [2, 3, 0])
    sim.step()
    sim.preempt(h)
    sim.run()
    assert len(h.logprobs) == len(h.tokens) == 7
    assert [each.chosen.token_id for each in h.logprobs] == h.tokens
    assert as_in_a_text_of_its_own(sim, h)
    assert (list(other.logprobs), other.prompt_logprobs) == ([], [None] * 9)
    assert as_alone(sim, h, other)


def test_each_sample_has_those_of_its_own_tokens() -> None:
    sim = Simulation(32, 4)
    h = sim.submit(text(9), max_tokens=4, n=3, seed=1, logprobs=2)
    sim.run()
    for sample in h.samples:
        assert [each.chosen.token_id for each in sample.logprobs] == sample.tokens
        assert as_in_a_text_of_its_own(sim, sample)


def test_the_distribution_is_one() -> None:
    """Probabilities sum to 1; ranks count those above; the best come first."""
    each = [token_logprobs([], token, 3) for token in range(VOCABULARY)]
    assert math.isclose(sum(math.exp(one.chosen.logprob) for one in each), 1)
    by_logprob = sorted((one.chosen for one in each), key=lambda chosen: -chosen.logprob)
    assert [chosen.rank for chosen in by_logprob] == list(range(1, VOCABULARY + 1))
    assert each[0].top == tuple(by_logprob[:3])
