"""The same episodes as a state machine, so that Hypothesis chooses the order of events and shrinks it.

``BASEBOARD_LONG_TESTS=1`` lets it run for far longer.
"""

from __future__ import annotations

import os
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from baseboard.testing import Simulation
from core.simulation.episode import Episode, draw_settings

DRAWN = st.randoms(use_true_random=False)


class SchedulerMachine(RuleBasedStateMachine):
    """Anything may happen between two steps; whatever did, invariants hold and texts are what they are alone."""

    episode: Episode

    @initialize(rng=DRAWN)
    def begin(self, rng: Random) -> None:
        self.episode = Episode(Simulation(**draw_settings(rng)), rng)

    @rule(rng=DRAWN)
    def submit(self, rng: Random) -> None:
        self._do("submit", rng)

    @rule(count=st.integers(1, 8), rng=DRAWN)
    def step(self, count: int, rng: Random) -> None:
        for _ in range(count):
            self._do("step", rng)

    @precondition(lambda self: self.episode.handles)
    @rule(rng=DRAWN)
    def abort(self, rng: Random) -> None:
        self._do("abort", rng)

    @precondition(lambda self: self.episode.live)
    @rule(rng=DRAWN)
    def preempt(self, rng: Random) -> None:
        self._do("preempt", rng)

    @precondition(lambda self: self.episode.live)
    @rule(rng=DRAWN)
    def fork(self, rng: Random) -> None:
        self._do("fork", rng)

    @rule(what=st.sampled_from(["reset", "fail", "offer_encoding", "offer_prefix", "grammar_ready", "hold"]), rng=DRAWN)
    def interfere(self, what: str, rng: Random) -> None:
        self._do(what, rng)

    @invariant()
    def nothing_is_broken(self) -> None:
        if hasattr(self, "episode"):
            self.episode.sim.check()

    def teardown(self) -> None:
        if hasattr(self, "episode"):
            self.episode.finish()

    def _do(self, what: str, rng: Random) -> None:
        self.episode.rng = rng
        getattr(self.episode, what)()


LONG = os.environ.get("BASEBOARD_LONG_TESTS") == "1"
TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=4000 if LONG else 150,
    stateful_step_count=40,
    deadline=None,
    derandomize=not LONG,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
