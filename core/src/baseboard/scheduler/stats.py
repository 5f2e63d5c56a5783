"""What the scheduler counts. Counters never go down."""

from __future__ import annotations

from dataclasses import dataclass


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
