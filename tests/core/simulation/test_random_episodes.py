"""Any mix of requests, limits, interference and nasty devices: tokens equal solo, and nothing leaks.

``BASEBOARD_LONG_TESTS=1`` plays far more and longer episodes.
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.simulation.episode import play

LONG = os.environ.get("BASEBOARD_LONG_TESTS") == "1"


@settings(
    max_examples=5000 if LONG else 300,
    deadline=None,
    derandomize=not LONG,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(rng=st.randoms(use_true_random=False), num_actions=st.integers(1, 40))
def test_drawn_episodes_equal_solo(rng: Random, num_actions: int) -> None:
    """Hypothesis draws and shrinks."""
    play(rng, num_actions)


def test_seeded_episodes_equal_solo_and_meet_everything() -> None:
    """Plain random numbers reach further in less time; and what they are for does happen in them."""
    met: Counter[str] = Counter()
    seed = 0
    while met["step"] < (1_000_000 if LONG else 50_000):
        rng = Random(seed)
        met += play(rng, rng.randint(1, 100 if LONG else 50)).met
        seed += 1
    print(dict(met))  # with -s, or in the report of a failure
    expected = {
        "abort", "error", "length", "stop", "refused", "failed step", "fork", "fork that shares", "copy", "hit",
        "draft", "eviction", "preemption", "swap out", "swap in", "stale result",
        "encoding", "encoding dropped", "encoding found", "encoding loaded", "encoding lost",
        "input for one that waits", "input for one that lost its blocks", "refused input", "pooled", "common prefix",
        "resting block", "stored block", "ignored",
    }  # fmt: skip
    assert {name for name in expected if met[name] >= 5} == expected
