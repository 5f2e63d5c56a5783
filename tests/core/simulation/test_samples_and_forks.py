"""Several samples of one prompt, and forks: sharing, copy-on-write, beams."""

from __future__ import annotations

import pytest

from baseboard.contract.errors import BaseboardError, RequestRejected
from baseboard.request.status import Status
from baseboard.testing import Handle, Simulation
from core.simulation.texts import as_alone, run_until, text


def script_differently(sim: Simulation, handle: Handle, length: int = 9) -> None:
    for index, sample in enumerate(handle.samples):
        sim.script(sample, [(10 * index + at) % 97 for at in range(length)])


def test_the_half_filled_block_is_copied_for_all_but_the_last_writer() -> None:
    """Scenario 49: P=6 in blocks of 4, three samples; b0 is shared, b1 is copied twice."""
    sim = Simulation(20, 4)
    h = sim.submit(text(6), max_tokens=9, n=3, stop_token_ids=[96])
    script_differently(sim, h)
    sim.script(h, [0, 1, 96])
    assert sim.step().tokens == {h.id: 6}
    b0, b1 = h.blocks
    assert sim.free_blocks == 18
    before = sim.device.memory.device_block(b1)
    plan = sim.step()
    assert plan.tokens == {s.id: 1 for s in h.samples}
    assert [source for source, _ in plan.copies] == [b1, b1]
    assert sim.free_blocks == 16
    assert [s.blocks[0] for s in h.samples] == [b0] * 3
    seconds = [s.blocks[1] for s in h.samples]
    assert len(set(seconds)) == 3
    assert seconds[2] == b1, "the last one writes in place"
    assert all(sim.device.memory.device_block(block)[:2] == before[:2] for block in seconds)
    assert len({sim.device.memory.device_block(block)[2] for block in seconds}) == 3
    sim.step()
    assert h.finish_reason == "stop"
    assert sim.scheduler.kv.pool.refs(b0) == 2
    sim.run()
    assert as_alone(sim, *h.samples)
    assert [len(s.tokens) for s in h.samples] == [3, 9, 9]
    assert sim.free_blocks == 20


@pytest.mark.parametrize(
    ("num_prompt", "copies", "blocks"),
    [(8, 0, 2 + 3), (1, 2, 3), (7, 2, 1 + 3)],
)
@pytest.mark.parametrize("depth", [0, 1])
def test_only_a_half_filled_block_is_copied(num_prompt: int, copies: int, blocks: int, depth: int) -> None:
    """Scenario 49: P=8 has no half block, P=1 only that."""
    sim = Simulation(20, 4, pipeline_depth=depth)
    h = sim.submit(text(num_prompt), max_tokens=9, n=3, seed=7)
    while h.num_computed_tokens <= num_prompt:
        plan = sim.step()
    assert len(plan.copies) == copies
    assert sim.free_blocks == 20 - blocks
    sim.run()
    assert as_alone(sim, *h.samples)
    assert len({tuple(s.tokens) for s in h.samples}) == 3, "seeded samples differ"


def test_beams_that_die_free_their_own_blocks_at_once() -> None:
    """Scenario 49, beam form, width 2: parents [1,1] at one step, then [0,0], then [0,1]."""
    sim = Simulation(20, 4)
    root = sim.submit(text(6), max_tokens=12)
    run_until(sim, root, 1)
    beams = [root, sim.fork(root)]
    everyone = list(beams)

    def survive(parents: tuple[int, int], tokens: tuple[int, int]) -> int:
        """Fork what is chosen twice, abort what is not chosen, take a step; returns how many blocks it copied."""
        chosen = [sim.fork(beams[p]) if p in parents[:at] else beams[p] for at, p in enumerate(parents)]
        for beam in beams:
            if beam not in chosen:
                own = [block for block in beam.blocks if sim.scheduler.kv.pool.refs(block) == 1]
                free = sim.free_blocks
                sim.abort(beam)
                assert len(own) == 1
                assert sim.free_blocks == free + 1
        for beam, token in zip(chosen, tokens, strict=True):
            sim.script(beam, [*beam.tokens, token])
        beams[:] = chosen
        everyone.extend(beam for beam in beams if beam not in everyone)
        return len(sim.step().copies)

    # The half block 1 is copied when tokens 6 and 7 are written; at 8 tokens no block is half filled.
    assert survive((0, 1), (10, 20)) == 1
    assert survive((1, 1), (30, 40)) == 1
    assert survive((0, 0), (50, 60)) == 0
    assert survive((0, 1), (70, 80)) == 0
    assert [beam.tokens[1:] for beam in beams] == [[20, 30, 50, 70], [20, 30, 60, 80]]
    sim.run()
    assert [len(beam.tokens) for beam in beams] == [12, 12]
    assert as_alone(sim, *beams)
    assert all(beam.tokens == sim.solo(beam)[: len(beam.tokens)] for beam in everyone)
    assert sim.free_blocks == 20


def test_all_samples_wait_for_places_of_their_own() -> None:
    sim = Simulation(32, 4, max_num_seqs=4)
    one, three, later = (
        sim.submit(text(4), max_tokens=3, n=2, seed=1),
        sim.submit(text(4, 1), max_tokens=3, n=3, seed=1),
        sim.submit(text(4, 2), max_tokens=3),
    )
    assert sim.step().tokens == {one.id: 4}
    sim.step()
    assert sim.step().tokens == {s.id: 1 for s in one.samples}
    assert sim.step().tokens == {three.id: 4, later.id: 4}
    sim.run()
    assert as_alone(sim, *one.samples, *three.samples, later)
    with pytest.raises(RequestRejected, match="n=5 samples need as many places, but max_num_seqs=4"):
        sim.submit(text(4), n=5)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("depth", [0, 2])
def test_samples_survive_the_preemption_of_their_prompt(mode: str, depth: int) -> None:
    sim = Simulation(32, 4, num_host_blocks=8, max_num_batched_tokens=4, pipeline_depth=depth)
    h = sim.submit(text(10), max_tokens=5, n=3, seed=1)
    for _ in range(3 if depth else 2):
        sim.step()
    sim.preempt(h, mode)
    assert all(s.status is h.status for s in h.samples)
    sim.run()
    assert as_alone(sim, *h.samples)


def test_a_sample_shows_its_request_until_it_goes_its_own_way() -> None:
    sim = Simulation(32, 4)
    h = sim.submit(text(4), max_tokens=3, n=2)
    late = h.samples[1]
    assert (late.id, late.status, late.tokens, late.blocks) == (f"{h.id}#1", Status.WAITING, [], [])
    with pytest.raises(BaseboardError, match=r"'r0#1' does not exist yet: its prompt is not computed"):
        sim.abort(late)
    sim.abort(h)
    assert late.finish_reason == "abort"
    sim.abort(late)


def test_one_sample_can_be_aborted_alone() -> None:
    sim = Simulation(32, 4)
    h = sim.submit(text(6), max_tokens=6, n=3, seed=5)
    sim.step()
    sim.abort(h.samples[1])
    sim.run()
    assert [s.finish_reason for s in h.samples] == ["length", "abort", "length"]
    assert as_alone(sim, h.samples[0], h.samples[2])
    assert sim.free_blocks == 32


def test_greedy_samples_are_equal_and_share_what_they_can() -> None:
    sim = Simulation(32, 4)
    h = sim.submit(text(8), max_tokens=6, n=2)
    sim.run()
    assert h.samples[0].tokens == h.samples[1].tokens == sim.solo(h)


def test_a_fork_begins_with_its_parents_tokens_and_blocks() -> None:
    sim = Simulation(32, 4)
    parent = sim.submit(text(6), max_tokens=10)
    run_until(sim, parent, 4)
    child = sim.fork(parent)
    assert child.tokens == parent.tokens
    assert child.blocks == parent.blocks
    assert sim.free_blocks == 32 - 3
    sim.script(child, [*child.tokens, 1, 2, 3])
    sim.run()
    assert child.tokens[:7] == [*parent.tokens[:4], 1, 2, 3]
    assert as_alone(sim, parent, child)


def test_a_fork_is_refused_before_there_is_output_and_after_the_end() -> None:
    sim = Simulation(32, 4)
    parent = sim.submit(text(6), max_tokens=2)
    with pytest.raises(RequestRejected, match="'r0' is waiting: only a request with output can be forked"):
        sim.fork(parent)
    sim.run()
    with pytest.raises(RequestRejected, match="'r0' is length_capped"):
        sim.fork(parent)


def test_a_fork_waits_where_every_place_is_taken() -> None:
    sim = Simulation(32, 4, max_num_seqs=1)
    parent = sim.submit(text(6), max_tokens=6)
    run_until(sim, parent, 2)
    child = sim.fork(parent)
    assert (child.status, child.blocks) == (Status.WAITING, [])
    sim.run()
    assert as_alone(sim, parent, child)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_fork_of_a_request_without_blocks_waits(mode: str) -> None:
    sim = Simulation(32, 4, num_host_blocks=8)
    parent = sim.submit(text(6), max_tokens=6)
    run_until(sim, parent, 2)
    sim.preempt(parent, mode)
    child = sim.fork(parent)
    assert child.status is Status.WAITING
    sim.run()
    assert as_alone(sim, parent, child)
