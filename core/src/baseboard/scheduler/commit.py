"""Takes in what came of a step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from baseboard.contract.errors import ContractError
from baseboard.contract.plan import StepResult
from baseboard.request.request import Request
from baseboard.request.status import Event, Status
from baseboard.scheduler.book import Book, sample_id
from baseboard.scheduler.inflight import InFlight


@dataclass(frozen=True, slots=True)
class Fork:
    parent: Request
    child: Request


@dataclass(slots=True)
class Outcome:
    """What a step brought, in columns: ``requests[i]`` gained its last ``counts[i]`` tokens, from row ``rows[i]``."""

    result: StepResult
    requests: list[Request] = field(default_factory=list[Request])
    rows: list[int] = field(default_factory=list[int])
    forks: list[Fork] = field(default_factory=list[Fork])
    finished: list[Request] = field(default_factory=list[Request])


class Committer:
    """Appends sampled tokens, publishes blocks that are now full, ends what has reached its end."""

    def __init__(self, book: Book) -> None:
        self._book: Final = book

    def commit(self, flight: InFlight, result: StepResult) -> Outcome:
        """Raises ``ContractError`` when the result is not one of this plan."""
        plan = flight.plan
        if result.step != plan.step or len(result.sampled) != len(plan.ids):
            raise ContractError(
                f"the executor answered step {result.step} with {len(result.sampled)} rows, "
                f"but step {plan.step} has {len(plan.ids)}"
            )
        outcome = Outcome(result)
        stats = self._book.stats
        rows = zip(flight.requests, flight.epochs, plan.starts, plan.counts, plan.samples, result.sampled, strict=True)
        for row, (request, epoch, start, count, samples, sampled) in enumerate(rows):
            if request.epoch != epoch:
                stats.num_stale_results += samples
                continue
            if row in result.failed:
                self._fail(request, result.failed[row], outcome)
                continue
            if start + count >= request.publish_at:
                request.publish_at = self._book.kv.publish(request.id, request.tokens, start + count)
            if samples:
                self._append(request, row, sampled, outcome)
        return outcome

    def fail(self, flight: InFlight, reason: str) -> list[Request]:
        """A whole step came to nothing: its requests end with an error, nothing of it is published."""
        failed = [r for r, epoch in zip(flight.requests, flight.epochs, strict=True) if r.epoch == epoch]
        for request in failed:
            request.error = reason
            self._book.finish(request, Event.FAIL)
        for request in flight.swapped_out:
            if request.status is Status.SWAPPED:
                self._book.lose_swapped(request)
        return failed

    def _append(self, request: Request, row: int, sampled: tuple[int, ...], outcome: Outcome) -> None:
        if len(sampled) != request.width:
            raise ContractError(f"request {request.id!r} was to get {request.width} tokens and got {len(sampled)}")
        request.promised -= 1
        if request.width > 1:
            self._fork(request, row, sampled, outcome)
        self._take(request, row, sampled[0], outcome)

    def _fork(self, request: Request, row: int, sampled: tuple[int, ...], outcome: Outcome) -> None:
        """The prompt is computed: from here on each sample is a request of its own."""
        request.width = 1
        computed = min(request.computed, len(request.tokens))
        specs = [
            replace(request.spec, id=sample_id(request.id, index), sample_index=index)
            for index in range(1, len(sampled))
        ]
        children = [self._book.fork(request, spec, computed) for spec in specs]
        for child, token in zip(children, sampled[1:], strict=True):
            outcome.forks.append(Fork(request, child))
            self._take(child, row, token, outcome)

    def _take(self, request: Request, row: int, token: int, outcome: Outcome) -> None:
        tokens = request.tokens
        tokens.append(token)
        self._book.stats.num_generated_tokens += 1
        outcome.requests.append(request)
        outcome.rows.append(row)
        if token in request.stop_ids and len(tokens) > request.stop_from:
            request.stop_reason = token
            self._end(request, Event.STOP, outcome)
        elif len(tokens) >= request.max_total:
            self._end(request, Event.REACH_LIMIT, outcome)

    def _fail(self, request: Request, reason: str, outcome: Outcome) -> None:
        request.error = reason
        self._end(request, Event.FAIL, outcome)

    def _end(self, request: Request, event: Event, outcome: Outcome) -> None:
        self._book.finish(request, event)
        outcome.finished.append(request)
