"""Looks at every step of every simulation: what must hold whatever the test is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from weakref import WeakKeyDictionary

import pytest

from baseboard.contract.plan import KVOpKind, StepPlan
from baseboard.scheduler.gates import Hold, StepInputs
from baseboard.scheduler.scheduler import Scheduler
from baseboard.scheduler.snapshot import Snapshot
from baseboard.scheduler.stats import SchedulerStats
from baseboard.testing import Simulation

COUNTERS = [field.name for field in fields(SchedulerStats) if field.name != "last_step_seconds"]


class Watch:
    """Wraps ``Simulation.step``; raises ``AssertionError`` in the step that breaks a rule."""

    def __init__(self, step: Callable[[Simulation], StepPlan]) -> None:
        self._step = step
        self._idle_steps: WeakKeyDictionary[Simulation, int] = WeakKeyDictionary()
        self._figures: WeakKeyDictionary[Simulation, Snapshot] = WeakKeyDictionary()

    def step(self, sim: Simulation) -> StepPlan:
        stats = sim.scheduler.stats
        before = stats.num_finished + stats.num_generated_tokens
        plan = self._step(sim)
        sim.check()
        check_plan(plan, sim)
        check_encoder(plan, sim)
        self._check_figures(sim)
        came = stats.num_finished + stats.num_generated_tokens > before
        # A step without rows takes in all that is under way, unless a test holds results back.
        outside = sim.scheduler.num_parked or sim.scheduler.num_in_flight or sim.encoder_source.is_awaited
        held = outside or sim.scheduler._pause.hold is not Hold.NONE or sim._throttled
        busy = held or plan.ids or plan.swaps_out or came or not sim.scheduler.num_unfinished
        self._idle_steps[sim] = 0 if busy else self._idle_steps.get(sim, 0) + 1
        assert self._idle_steps[sim] < 2, "two steps in a row did nothing, with work to do"
        return plan

    def _check_figures(self, sim: Simulation) -> None:
        """INV 8: counters never go down, gauges sum to what is unfinished."""
        now = sim.scheduler.snapshot()
        assert now.num_unfinished == sim.scheduler.num_unfinished
        assert 0 <= now.kv_usage <= 1
        before = self._figures.get(sim, now)
        assert all(getattr(before, name) <= getattr(now, name) for name in COUNTERS)
        self._figures[sim] = now


def check_plan(plan: StepPlan, sim: Simulation) -> None:
    """The plan keeps its limits and can be executed as the contract says."""
    config = sim.scheduler.config
    assert plan.num_tokens <= config.max_num_batched_tokens
    assert len(plan.ids) <= config.max_num_seqs
    assert len(set(plan.ids)) == len(plan.ids)
    assert all(count >= 1 for count in plan.counts)
    assert all(start + count <= config.max_model_len - 1 for start, count in zip(plan.starts, plan.counts, strict=True))
    assert not (plan.swaps_in and plan.swaps_out), "blocks move in and out in one step"
    entered = [state.id for state in plan.entered]
    assert len(set(entered)) == len(entered)
    assert set(entered) <= set(plan.ids)
    assert not set(entered) & {update.id for update in plan.updates}
    for op in plan.kv_ops:
        destinations = [pair.destination for pair in op.pairs]
        assert op.pairs
        assert len(set(destinations)) == len(destinations), f"two blocks go to one place: {op}"
        if op.kind is KVOpKind.COPY:
            assert not set(destinations) & {pair.source for pair in op.pairs}, f"a copy of a copy: {op}"
    if not sim.scheduler.kv.windowed:
        entries = [block for state in plan.entered for table in state.tables for block in table]
        assert 0 not in entries, "the null block is in a table"


def check_encoder(plan: StepPlan, sim: Simulation) -> None:
    """Nothing is made twice, or beyond the budget; what is kept has room; whoever makes something needs it now."""
    limits, made = sim.encoder.limits, [*plan.encodes, *plan.encoder_loads]
    assert sum(each.span.cost for each in plan.encodes) <= limits.units_per_step
    assert len({each.span.content_id for each in made}) == len(made)
    rows = {name: (start, start + count) for name, start, count in zip(plan.ids, plan.starts, plan.counts, strict=True)}
    for each in made:
        start, end = rows[each.id]
        assert each.span.offset < end, f"{each} is made too early: the row covers {start} to {end - 1}"
        assert start < each.span.end, f"{each} is made for nothing: the row covers {start} to {end - 1}"


def check_writes(plan: StepPlan, scheduler: Scheduler) -> None:
    """What a plan writes to is held once, and nobody can find it in the index."""
    kv = scheduler.kv
    for name, start, count in zip(plan.ids, plan.starts, plan.counts, strict=True):
        if scheduler._book.get(name) is None:
            continue  # a plugin failed on it after its row was planned: it has ended, as if it had been aborted
        written = slice(start // kv.block_size, kv.blocks_for(start + count))
        for block in [block for table in kv.tables(name) for block in table[written]]:
            assert kv.pool.refs(block) == 1, f"{name!r} writes to block {block}, which others hold"
            assert not kv.index.holds(block), f"{name!r} writes to block {block}, which is published"


def check_common_prefix(plan: StepPlan, scheduler: Scheduler) -> None:
    """Row 38, where it is asked for: as counted by looking at all tables."""
    if plan.num_common_prefix_blocks is None:
        return
    assert scheduler._common_prefix is not None
    tables = [scheduler.kv.tables(name)[scheduler._common_prefix.group] for name in plan.ids]
    written_from = min(plan.starts, default=0) // scheduler.kv.block_size
    common = 0
    for at in range(written_from):
        if len({table[at] for table in tables}) > 1:
            break
        common += 1
    assert plan.num_common_prefix_blocks == common


def watch_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(Simulation.step)

    def step(sim: Simulation) -> StepPlan:
        return watch.step(sim)

    schedule = Scheduler.schedule

    def schedule_and_check(scheduler: Scheduler, *inputs: StepInputs) -> StepPlan:
        plan = schedule(scheduler, *inputs)
        check_writes(plan, scheduler)
        check_common_prefix(plan, scheduler)
        return plan

    monkeypatch.setattr(Simulation, "step", step)
    monkeypatch.setattr(Scheduler, "schedule", schedule_and_check)
