"""What a test sees of a simulation: a handle for each sequence, and counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from baseboard.contract.plan import TokenLogprobs
from baseboard.request.request import Request
from baseboard.request.status import FinishReason, Status
from baseboard.scheduler.events import RequestEvent
from baseboard.testing.device import Facts
from baseboard.testing.grammar import CallableGrammar

if TYPE_CHECKING:
    from baseboard.testing.simulation import Simulation


class Handle:
    """One request, or one of its samples, as the caller sees it.

    A sample shows what the first one shows until the prompt is computed and it goes its own way.
    """

    def __init__(self, simulation: Simulation, request_id: str, request: Request, facts: Facts) -> None:
        self.id: Final = request_id
        self.request = request
        self.facts: Final = facts
        self.samples: Final[list[Handle]] = [self]
        self._simulation = simulation

    @property
    def tokens(self) -> list[int]:
        """Outputs so far."""
        return self.request.outputs

    @property
    def status(self) -> Status:
        return self.request.status

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.request.finish_reason

    @property
    def error(self) -> str | None:
        return self.request.error

    @property
    def num_computed_tokens(self) -> int:
        return self.request.computed

    @property
    def num_cached_tokens(self) -> int:
        return self.request.num_cached

    @property
    def num_preemptions(self) -> int:
        return self.request.num_preemptions

    @property
    def events(self) -> list[RequestEvent]:
        """What happened to it, in order."""
        return [event for event in self._simulation.events if event.request_id == self.request.id]

    @property
    def pooled(self) -> Any:
        """What a pooling request got; None before."""
        return self.request.pooled

    @property
    def num_nans(self) -> int:
        return self.request.num_nans

    @property
    def logprobs(self) -> Sequence[TokenLogprobs]:
        """Parallel to ``tokens``, where asked for."""
        return self._simulation.logprobs.sampled(self.id)

    @property
    def prompt_logprobs(self) -> Sequence[TokenLogprobs | None]:
        """Parallel to the prompt, where asked for; the first has none."""
        return self._simulation.logprobs.prompt(self.request.id, self.request.num_prompt)

    @property
    def kv_transfer(self) -> Mapping[str, Any] | None:
        """What the connector said when the request ended."""
        return self.request.kv_transfer

    @property
    def blocks(self) -> list[int]:
        """Device blocks held."""
        return self._simulation.blocks_of(self)

    @property
    def num_grammar_tokens(self) -> int:
        """How often its grammar's matcher advanced."""
        constraint = self.request.constraint
        return constraint.num_advanced if isinstance(constraint, CallableGrammar) else 0

    @property
    def num_in_flight(self) -> int:
        """Steps under way that hold a row of it."""
        return self._simulation.in_flight_of(self)

    def __repr__(self) -> str:
        return f"<Handle {self.request!r}>"


@dataclass(frozen=True, slots=True)
class SimulationStats:
    """Counters, also by subscript."""

    tracked_requests: int
    num_preemptions: int
    num_swaps_out: int
    num_recomputed_tokens: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_scheduled_tokens: int
    prefix_queries: int
    prefix_hits: int
    evictions: int
    metadata_mismatches: int
    stale_results: int

    def __getitem__(self, name: str) -> int:
        return getattr(self, name)
