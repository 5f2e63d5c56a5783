"""What is shared, with whom, and what is never shared."""

from __future__ import annotations

from random import Random

import pytest

from baseboard.testing import Simulation
from core.simulation.texts import as_alone, run_alone, run_until, text


def test_a_prompt_seen_before_computes_its_last_block_again() -> None:
    """Scenario 34a: 64 tokens, all cached; the hit is capped so that at least one token is computed."""
    sim = Simulation(12, 16)
    first = run_alone(sim, text(64), max_tokens=3)
    again = sim.submit(text(64), max_tokens=3)
    plan = sim.step()
    assert (plan.starts, plan.counts) == ((48,), (16,))
    sim.run()
    assert again.num_cached_tokens == 48
    assert again.tokens == first.tokens
    assert as_alone(sim, first, again)


def test_a_prompt_is_shared_with_one_that_still_runs() -> None:
    """Scenario 34b."""
    sim = Simulation(12, 16)
    first = sim.submit(text(64), max_tokens=3)
    sim.step()
    again = sim.submit(text(64), max_tokens=3)
    assert sim.step().tokens == {first.id: 1, again.id: 16}
    assert first.blocks[:3] == again.blocks[:3]
    assert first.blocks[3] != again.blocks[3], "a block that another holds would be written"
    sim.run()
    assert first.tokens == again.tokens
    assert as_alone(sim, first)


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "hit", "computed"),
    [(64, 1, 48, 16), (16, 3, 0, 16), (65, 3, 64, 1)],  # scenarios 34c, 34d, 34e
)
def test_the_hit_is_whole_blocks_short_of_the_last_token(
    num_prompt: int, max_tokens: int, hit: int, computed: int
) -> None:
    sim = Simulation(12, 16)
    first = run_alone(sim, text(num_prompt), max_tokens)
    again = sim.submit(text(num_prompt), max_tokens=max_tokens)
    plan = sim.step()
    assert (plan.starts, plan.counts) == ((hit,), (computed,))
    sim.run()
    assert again.num_cached_tokens == hit
    assert first.tokens == again.tokens == sim.solo(again)


def test_a_half_computed_block_is_not_published() -> None:
    """Scenario 39: after 24 of 40 tokens only the first block is whole."""
    sim = Simulation(12, 16, max_num_batched_tokens=24)
    r0 = sim.submit(text(40), max_tokens=4)
    sim.step()
    r1 = sim.submit(text(40), max_tokens=4)
    assert sim.step().tokens == {r0.id: 16, r1.id: 8}
    assert r1.num_cached_tokens == 16
    sim.run()
    assert as_alone(sim, r0, r1)


def test_an_index_entry_goes_when_its_block_is_taken() -> None:
    """Scenario 42: V takes all 4 blocks from U, so U hits nothing when it comes again."""
    sim = Simulation(4, 4)
    u, v = text(16), text(16, 1)
    hits = [run_alone(sim, prompt).num_cached_tokens for prompt in (u, v, v, u)]
    assert hits == [0, 0, 12, 0]
    assert sim.cached_blocks == 4


@pytest.mark.parametrize("block", [0, 2])
@pytest.mark.parametrize("change", ["first token", "last token", "order"])
def test_nothing_is_shared_from_the_first_block_that_differs(block: int, change: str) -> None:
    """Scenario 42, mutations: one token, or the order, of one block of four tokens."""
    sim = Simulation(32, 4)
    prompt = text(20)
    other = list(prompt)
    if change == "order":
        other[4 * block : 4 * block + 4] = other[4 * block : 4 * block + 4][::-1]
    else:
        other[4 * block + (3 if change == "last token" else 0)] += 1
    first, second = run_alone(sim, prompt, 3), run_alone(sim, other, 3)
    assert second.num_cached_tokens == 4 * block
    assert as_alone(sim, first, second)


def test_the_same_block_behind_another_beginning_is_another_block() -> None:
    """Scenario 43: [A|C|x] and [D|C|x]."""
    sim = Simulation(32, 4)
    a, c, d, x = text(4, 1), text(4, 2), text(4, 3), text(1, 4)
    run_alone(sim, a + c + x)
    second = run_alone(sim, d + c + x, 3)
    assert second.num_cached_tokens == 0
    assert as_alone(sim, second)


def test_many_random_prompts_never_hit_what_is_not_theirs() -> None:
    """Scenario 43: 500 prompts of 3 to 6 blocks over two token ids; keys are 128 bits, so content decides."""
    rng = Random(0)
    sim = Simulation(48, 4)
    handles = []
    for _ in range(100):
        for _ in range(5):
            blocks = [rng.choice(([1, 1, 1, 1], [1, 1, 1, 2], [2, 1, 1, 1])) for _ in range(rng.randint(3, 6))]
            handles.append(sim.submit([token for block in blocks for token in block], max_tokens=2))
        sim.run()
    assert as_alone(sim, *handles)
    assert sim.stats.prefix_hits > 500
    assert sim.stats.evictions > 100


def test_tenants_do_not_share_and_an_empty_salt_is_no_salt() -> None:
    """Scenario 44: the same 64 tokens under salts a, b, a, none, and the empty one."""
    sim = Simulation(64, 16)
    salts = ("a", "b", "a", None, "")
    handles = []
    for salt in salts:
        handles.append(sim.submit(text(64), max_tokens=3, salt=salt))
        sim.run()
    assert [h.num_cached_tokens for h in handles] == [0, 0, 48, 0, 48]
    assert as_alone(sim, *handles)
    assert len({tuple(h.tokens) for h in handles}) == 3, "the simulated model tells namespaces apart"


def test_with_the_cache_off_nothing_is_kept() -> None:
    sim = Simulation(12, 16, prefix_caching=False)
    first, again = run_alone(sim, text(64), 3), run_alone(sim, text(64), 3)
    assert (again.num_cached_tokens, sim.cached_blocks, sim.stats.prefix_hits) == (0, 0, 0)
    assert first.tokens == again.tokens == sim.solo(again)


def test_outputs_are_shared_too() -> None:
    """A conversation goes on: the next prompt begins with the last one and its answer."""
    sim = Simulation(32, 4)
    first = run_alone(sim, text(6), max_tokens=8)
    second = run_alone(sim, text(6) + first.tokens + text(3, 5), max_tokens=4)
    assert second.num_cached_tokens == 12  # 13 of the 14 tokens were computed: three full blocks
    assert as_alone(sim, second)


def test_tails_are_evicted_before_heads() -> None:
    """Three blocks are cached, one has to go: the hit shrinks to two blocks, not to none."""
    sim = Simulation(4, 4)
    run_alone(sim, text(12))
    run_alone(sim, text(5, 1))
    assert sim.stats.evictions == 1
    assert run_alone(sim, text(13)).num_cached_tokens == 8


def test_after_a_reset_nothing_is_hit_and_the_device_forgets() -> None:
    sim = Simulation(12, 16)
    run_alone(sim, text(64))
    sim.reset_prefix_cache()
    assert (sim.cached_blocks, sim.free_blocks) == (0, 12)
    again = sim.submit(text(64), max_tokens=3)
    plan = sim.step()
    assert len(plan.zeroes) == 4
    assert again.num_cached_tokens == 0
    sim.run()
    assert as_alone(sim, again)


def test_a_request_older_than_a_reset_publishes_nothing_more() -> None:
    sim = Simulation(32, 4)
    old = sim.submit(text(8), max_tokens=20)
    run_until(sim, old, 3)
    sim.reset_prefix_cache()
    run_until(sim, old, 15)
    assert sim.cached_blocks == 0
    sim.run()
    assert as_alone(sim, old)
    again = run_alone(sim, text(9))
    assert again.num_cached_tokens == 0
    assert sim.cached_blocks == 2, "what was computed after the reset is published again"


def test_a_swapped_request_older_than_a_reset_publishes_nothing_when_it_comes_back() -> None:
    sim = Simulation(32, 4, num_host_blocks=32)
    old = sim.submit(text(8), max_tokens=20)
    run_until(sim, old, 3)
    sim.preempt(old, "swap")
    sim.step()
    sim.reset_prefix_cache()
    sim.run()
    assert as_alone(sim, old)
    assert sim.cached_blocks == 0


@pytest.mark.parametrize("mode", [None, "swap", "recompute"])
def test_a_reset_that_preempts_has_everything_computed_again(mode: str | None) -> None:
    """Running or swapped, nothing computed before the reset is used after it."""
    sim = Simulation(32, 4, num_host_blocks=32)
    old = sim.submit(text(8), max_tokens=20)
    run_until(sim, old, 3)
    if mode is not None:
        sim.preempt(old, mode)
    sim.reset_prefix_cache(preempt=True)
    plan = sim.step()
    assert (plan.starts, plan.counts) == ((0,), (11,))
    assert (plan.swaps_in, plan.swaps_out) == ((), ())
    assert sim.free_host_blocks == 32
    sim.run()
    assert as_alone(sim, old)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_reset_spares_what_is_on_its_way_to_the_host(depth: int) -> None:
    """The blocks of a request preempted just before are free and cached, and not moved yet."""
    sim = Simulation(12, 4, num_host_blocks=12, pipeline_depth=depth)
    old = sim.submit(text(12), max_tokens=9)
    run_until(sim, old, 3)
    sim.preempt(old, "swap")
    sim.reset_prefix_cache()
    plan = sim.step()
    assert not set(plan.zeroes) & {source for source, _ in plan.swaps_out}
    sim.run()
    assert as_alone(sim, old)


def test_prefix_blocks_survive_their_holder_while_another_reads_them() -> None:
    sim = Simulation(12, 16)
    short = sim.submit(text(33), max_tokens=2)
    sim.step()
    long = sim.submit(text(33), max_tokens=20)
    sim.run()
    assert long.num_cached_tokens == 32
    assert as_alone(sim, short, long)
