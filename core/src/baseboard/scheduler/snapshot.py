"""The scheduler's figures at one moment."""

from __future__ import annotations

from dataclasses import dataclass, fields

from baseboard.scheduler.book import Book
from baseboard.scheduler.stats import SchedulerStats


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Gauges first; they go up and down. Counters never go down."""

    num_running: int
    num_waiting: int
    num_swapped: int
    num_parked: int  #: wait for a grammar, for keys and values from outside or their turn after that, or for input
    num_in_flight: int  #: steps planned and not taken in
    kv_usage: float  #: share of the device blocks that live requests hold, 0 to 1
    host_usage: float  #: the same of the host pool; 0 where there is none
    num_cached_blocks: int  #: entries of the prefix index
    # --- counters -----------------------------------------------------------------------------------------------
    num_requests: int
    num_finished: int
    num_preemptions: int
    num_swaps_out: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_scheduled_tokens: int
    num_recomputed_tokens: int
    prefix_queries: int
    prefix_hits: int
    prefix_evictions: int
    num_drafts: int
    num_drafts_accepted: int
    num_stale_results: int
    num_policy_faults: int
    num_steps: int
    num_busy_steps: int
    busy_seconds: float
    # --- of the latest step -------------------------------------------------------------------------------------
    last_step_seconds: float

    @property
    def num_unfinished(self) -> int:
        return self.num_running + self.num_waiting + self.num_swapped + self.num_parked

    @property
    def prefix_hit_ratio(self) -> float:
        return self.prefix_hits / self.prefix_queries if self.prefix_queries else 0.0

    @property
    def draft_acceptance(self) -> float:
        return self.num_drafts_accepted / self.num_drafts if self.num_drafts else 0.0

    @property
    def seconds_per_step(self) -> float:
        """Mean over the steps that had rows."""
        return self.busy_seconds / self.num_busy_steps if self.num_busy_steps else 0.0


def take_snapshot(book: Book, num_in_flight: int) -> Snapshot:
    kv = book.kv
    return Snapshot(
        num_running=len(book.running),
        num_waiting=len(book.waiting),
        num_swapped=len(book.swapped),
        num_parked=len(book.parked) + len(book.idle) + len(book.loaded),
        num_in_flight=num_in_flight,
        kv_usage=1 - kv.pool.num_free / kv.pool.num_blocks,
        host_usage=1 - kv.host.num_free / kv.host.num_blocks if kv.host.num_blocks else 0.0,
        num_cached_blocks=kv.index.num_entries,
        prefix_evictions=kv.pool.num_evictions,
        **{field.name: getattr(book.stats, field.name) for field in fields(SchedulerStats)},
    )
