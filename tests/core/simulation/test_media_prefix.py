"""Prefix hits of prompts with inputs: placeholders hide nothing."""

from __future__ import annotations

from baseboard.contract.media import ContentId
from baseboard.testing import Handle, Simulation
from core.simulation.texts import as_alone, text

X = 0x0123_4567_89AB_CDEF_0011_2233_4455_6677


def run(sim: Simulation, content: ContentId, begin: int = 40) -> Handle:
    """96 tokens, 32 identical placeholders, and the input that they stand for."""
    prompt = text(96)
    prompt[begin : begin + 32] = [1] * 32
    handle = sim.submit(prompt, max_tokens=3, media=[(begin, 32, content, 32)])
    sim.run()
    assert as_alone(sim, handle)
    return handle


def test_only_the_same_input_in_the_same_place_is_hit() -> None:
    """Scenario 46, row 32: ids that share their low 16 or 64 bits, and a span one position further."""
    sim = Simulation(60, 16)
    assert run(sim, X).num_cached_tokens == 0
    assert run(sim, X ^ (1 << 16)).num_cached_tokens == 32
    assert run(sim, X ^ (1 << 64)).num_cached_tokens == 32
    assert run(sim, X ^ (1 << 127)).num_cached_tokens == 32
    assert run(sim, X, begin=41).num_cached_tokens == 32
    assert run(sim, X).num_cached_tokens == 80


def test_the_same_tokens_without_an_input_are_another_text() -> None:
    """Scenario 46: the shift alone would show in the tokens; here they are all the same."""
    sim = Simulation(60, 4)
    hits = []
    for media in ([(6, 4, "X", 1)], [], [(5, 4, "X", 1)], [(6, 4, "X", 1)]):
        handle = sim.submit([1] * 20, max_tokens=2, media=media)
        sim.run()
        assert as_alone(sim, handle)
        hits.append(handle.num_cached_tokens)
    assert hits == [0, 4, 4, 16]


def test_what_was_written_after_an_input_is_hit_through_the_host_pool_too() -> None:
    """Scenario 46, row 24."""
    sim = Simulation(20, 4, num_host_blocks=20)
    handle = sim.submit(text(16), max_tokens=8, media=[(2, 6, X, 1)])
    sim.step()
    sim.preempt(handle, "swap")
    sim.run()
    again = sim.submit(text(16), max_tokens=8, media=[(2, 6, X, 1)])
    sim.run()
    assert again.num_cached_tokens == 12
    assert as_alone(sim, handle, again)


def test_samples_of_a_prompt_with_an_input_share_it() -> None:
    """Rows 33 and 44."""
    sim = Simulation(60, 4)
    handle = sim.submit(text(15), max_tokens=6, n=3, seed=1, media=[(1, 9, X, 9)])
    sim.run()
    assert sim.encoder.stats.num_computed == 1
    assert as_alone(sim, *handle.samples)


def test_what_is_offered_outside_by_its_tokens_is_not_taken_for_an_input() -> None:
    """Scenario 46: keys and values of a plain text, from the connector, stop where the input begins."""
    sim = Simulation(60, 4)
    sim.connector.offer(text(20), 20)
    handle = sim.submit(text(20), max_tokens=3, media=[(9, 4, X, 1)])
    plan = sim.step()
    assert [(load.first, load.num_tokens) for load in plan.loads] == [(0, 8)]
    sim.run()
    assert as_alone(sim, handle)
