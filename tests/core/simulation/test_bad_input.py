"""Bad input: refused before anything is done for it, naming value, limit and way out. Plugins: core/scheduling."""

from __future__ import annotations

import re
from typing import Any

import pytest

from baseboard.contract.errors import RequestRejected, Unsupported
from baseboard.scheduler.policy import Policy
from baseboard.testing import Simulation
from baseboard.testing.replay import Cluster, replay
from core.simulation.texts import as_alone, text


def test_an_id_that_is_in_use_is_refused() -> None:
    sim = Simulation(32, 4)
    first = sim.submit(text(6), request_id="a", max_tokens=4)
    with pytest.raises(RequestRejected, match=r"request id 'a' is in use: choose another, or wait until it has fin"):
        sim.submit(text(6), request_id="a")
    sim.run()
    assert as_alone(sim, first)


def test_an_adapter_that_there_is_not_is_refused_where_the_adapters_are_known() -> None:
    sim = Simulation(32, 4, adapters=["fr", "de"])
    for name in ("fr", None):
        sim.submit(text(6), adapter=name)
    with pytest.raises(RequestRejected, match=r"^adapter 'es' is unknown; known are: de, fr$"):
        sim.submit(text(6), adapter="es")
    with pytest.raises(RequestRejected, match=r"^adapter 'es' is unknown; known are: none$"):
        Simulation(32, 4, adapters=()).submit(text(6), adapter="es")
    Simulation(32, 4).submit(text(6), adapter="es")  # nobody said what there is
    sim.run()


@pytest.mark.parametrize("priority", [1.0, "high", None, True, (1,)])
def test_a_priority_is_a_whole_number(priority: Any) -> None:
    sim = Simulation(32, 4, policy="priority")
    with pytest.raises(RequestRejected, match=r"priority=.* must be a whole number; the lower, the sooner, also below"):
        sim.submit(text(6), priority=priority)
    assert sim.stats.tracked_requests == 0


def test_a_priority_may_be_negative() -> None:
    sim = Simulation(32, 4, policy="priority", max_num_seqs=1)
    usual, urgent = sim.submit(text(6), max_tokens=1), sim.submit(text(6, 1), max_tokens=1, priority=-3)
    assert [sim.step().ids for _ in range(2)] == [(urgent.id,), (usual.id,)]


@pytest.mark.parametrize("tenant", [1, b"a", ("a",)])
def test_a_tenant_is_a_name(tenant: Any) -> None:
    with pytest.raises(RequestRejected, match=r"tenant=.* must be a name, or None for nobody in particular"):
        Simulation(32, 4).submit(text(6), tenant=tenant)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens=0 must be at least 1"),
        ({"block_size": 0}, "block_size=0 must be at least 1"),
        ({"num_blocks": 0}, "num_blocks=0 must be at least 1"),
        ({"num_host_blocks": -1}, "num_host_blocks=-1 must not be negative"),
        ({"max_num_seqs": 0}, "max_num_seqs=0 must be at least 1"),
        ({"max_num_active_seqs": 0}, "max_num_active_seqs=0 must be at least 1"),
        (
            {"max_num_seqs": 4, "max_num_active_seqs": 5},
            "max_num_active_seqs=5 is more than max_num_seqs=4: lower it, or leave it out",
        ),
        (
            {"max_num_batched_tokens": 16, "max_num_scheduled_tokens": 17},
            "max_num_scheduled_tokens=17 is more than max_num_batched_tokens=16: lower it, or leave it out",
        ),
        (
            {"max_num_batched_tokens": 16, "long_prefill_token_threshold": 17},
            "long_prefill_token_threshold=17 is more than the 16 tokens of a step: lower it, or leave it out",
        ),
        (
            {"max_num_scheduled_tokens": 8, "long_prefill_token_threshold": 9},
            "long_prefill_token_threshold=9 is more than the 8 tokens of a step: lower it, or leave it out",
        ),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold=-1 must not be negative"),
        ({"max_model_len": 1}, "max_model_len=1 must be at least 2: one token in, one out"),
    ],
)
def test_limits_that_leave_nothing_or_contradict_each_other_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        Simulation(**{"num_blocks": 8, "block_size": 4, **settings})


@pytest.mark.parametrize(
    ("preemption", "host", "said"),
    [
        ("recompute", 4, "num_host_blocks=4, but preemption='recompute' never swaps; use 'auto' or 'swap', or 0"),
        ("swap", 0, "preemption='swap' needs num_host_blocks of at least 1; set it, or use 'recompute'"),
    ],
)
def test_a_host_pool_and_a_way_to_preempt_that_contradict_each_other_are_refused(
    preemption: str, host: int, said: str
) -> None:
    """In an engine and in a replay; a simulation may be told to swap by hand."""
    with pytest.raises(Unsupported) as refused:
        replay((), Cluster(8, num_host_blocks=host, policy=Policy(preemption=preemption)))
    assert str(refused.value) == said
    Simulation(8, 4, num_host_blocks=host, preemption=preemption)


def test_without_chunks_a_prompt_that_no_step_takes_is_refused_and_shorter_ones_are_served() -> None:
    """A step may be smaller than the longest request that the model allows: only prompts have to fit."""
    sim = Simulation(64, 4, max_num_batched_tokens=16, max_model_len=128, chunked_prefill=False)
    with pytest.raises(
        RequestRejected, match=r"17 tokens, but without chunked prefill a step takes .*=16; raise it or"
    ):
        sim.submit(text(17))
    served = sim.submit(text(16), max_tokens=30)
    sim.run()
    assert as_alone(sim, served)
    assert len(served.tokens) == 30
