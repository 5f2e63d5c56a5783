"""What the scheduler counts. Counters never go down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(slots=True)
class SchedulerStats:
    num_steps: int = 0
    num_requests: int = 0
    num_finished: int = 0
    num_preemptions: int = 0
    num_swaps_out: int = 0  #: preemptions that moved blocks to the host
    num_prompt_tokens: int = 0  #: of admitted requests, each prompt once
    num_generated_tokens: int = 0
    num_scheduled_tokens: int = 0
    num_recomputed_tokens: int = 0  #: scheduled to make up for a preemption
    prefix_queries: int = 0  #: prompt tokens looked up at first admission
    prefix_hits: int = 0  #: of those, found in the cache
    num_drafts: int = 0  #: guessed tokens that were computed
    num_drafts_accepted: int = 0  #: of those, the ones that were right
    num_policy_faults: int = 0  #: times that a role of another party failed
    num_stale_results: int = 0  #: sampled, but the request had been preempted or ended meanwhile
    num_busy_steps: int = 0  #: steps with rows whose successor has been planned
    busy_seconds: float = 0.0  #: of the injected clock, that these took until then
    last_step_seconds: float = 0.0  #: that the latest of them took: the one figure here that goes up and down


class StepTimer:
    """Counts how long steps take by the injected clock: from one plan to the next."""

    def __init__(self, stats: SchedulerStats) -> None:
        self._stats: Final = stats
        self._began: float | None = None

    def planned(self, now: float, num_rows: int) -> None:
        """A step is planned; the one before, if it had any rows, took until now."""
        stats = self._stats
        if self._began is not None:
            stats.num_busy_steps += 1
            stats.last_step_seconds = now - self._began
            stats.busy_seconds += stats.last_step_seconds
        self._began = now if num_rows else None
