"""Prompts, and small steps that many tests take."""

from __future__ import annotations

from baseboard.testing import Handle, Simulation


def text(num_tokens: int, key: int = 0) -> list[int]:
    """A prompt; texts of different keys (0 to 96) differ from their first token on."""
    return [(key * 37 + 5 * at) % 97 for at in range(num_tokens)]


def run_until(sim: Simulation, handle: Handle, num_outputs: int) -> None:
    """Step until the handle has this many outputs."""
    for _ in range(1000):
        if len(handle.tokens) >= num_outputs:
            return
        sim.step()
    raise AssertionError(f"{handle!r} never had {num_outputs} outputs")


def run_alone(sim: Simulation, prompt: list[int], max_tokens: int = 1) -> Handle:
    """Submit and run to the end."""
    handle = sim.submit(prompt, max_tokens=max_tokens)
    sim.run()
    return handle


def as_alone(sim: Simulation, *handles: Handle) -> bool:
    """Whether each has all the tokens that it has when it runs alone."""
    return all(handle.tokens == sim.solo(handle) for handle in handles)
