"""Takes in what came of a step."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from baseboard.contract.errors import ContractError
from baseboard.contract.plan import StepResult
from baseboard.request.constraint import TokenConstraint
from baseboard.request.request import Request
from baseboard.request.status import Event
from baseboard.scheduler.book import Book
from baseboard.scheduler.inflight import InFlight
from baseboard.scheduler.resources import Resource
from baseboard.scheduler.stop import StopRule


@dataclass(frozen=True, slots=True)
class Fork:
    parent: Request
    child: Request


@dataclass(slots=True)
class Outcome:
    """What a step brought, in columns: ``requests[i]`` gained ``tokens[i]``, from row ``rows[i]`` of the plan."""

    result: StepResult
    requests: list[Request] = field(default_factory=list[Request])
    tokens: list[int] = field(default_factory=list[int])
    rows: list[int] = field(default_factory=list[int])
    forks: list[Fork] = field(default_factory=list[Fork])
    finished: list[Request] = field(default_factory=list[Request])

    def by_client(self) -> dict[int, Outcome]:
        """The same, split by the client whose request it is; clients to whom nothing happened are left out."""
        parts: dict[int, Outcome] = {}

        def part(request: Request) -> Outcome:
            return parts.setdefault(request.spec.caller.client, Outcome(self.result))

        for request, token, row in zip(self.requests, self.tokens, self.rows, strict=True):
            mine = part(request)
            mine.requests.append(request)
            mine.tokens.append(token)
            mine.rows.append(row)
        for fork in self.forks:
            part(fork.child).forks.append(fork)
        for request in self.finished:
            part(request).finished.append(request)
        return parts


class Committer:
    """Appends sampled tokens, publishes blocks that are now full, ends what has reached its end."""

    def __init__(self, book: Book, stops: tuple[StopRule, ...], resources: tuple[Resource, ...] = ()) -> None:
        self._book: Final = book
        self._stops: Final = stops
        self._resources: Final = resources

    def commit(self, flight: InFlight, result: StepResult, later: Sequence[InFlight] = ()) -> Outcome:
        """``later`` are the plans made since. Raises ``ContractError`` when the result is not one of this plan."""
        plan = flight.plan
        if result.step != plan.step or len(result.sampled) != len(plan.ids):
            raise ContractError(
                f"the executor answered step {result.step} with {len(result.sampled)} rows, "
                f"but step {plan.step} has {len(plan.ids)}"
            )
        outcome = Outcome(result)
        if result.num_nans:
            _count_nans(flight, result.num_nans)
        special = self._special(flight, result)
        settle, stops = self._book.kv.settle, self._stops
        add_request, add_token, add_row = outcome.requests.append, outcome.tokens.append, outcome.rows.append
        columns = zip(flight.requests, flight.epochs, plan.starts, plan.counts, plan.samples, strict=True)
        for row, (request, epoch, start, count, samples) in enumerate(columns):
            sampled = result.sampled[row]
            if row in special or samples != 1 or request.epoch != epoch or len(sampled) != 1:
                self._take_in(flight, row, result, outcome)
                continue
            # What _take_in() comes down to for the next token of a plain request: nearly every row of every step.
            tokens, (token,) = request.tokens, sampled
            if start + count >= request.settle_at:
                request.settle_at = settle(request.id, tokens, start + count)
            request.promised -= 1
            tokens.append(token)
            add_request(request)
            add_token(token)
            add_row(row)
            if token in request.stop_ids or len(tokens) >= request.max_total or stops:
                self._end_if_due(request, token, outcome)
        self._book.stats.num_generated_tokens += len(outcome.tokens)
        if plan.pools:
            self._take_pooled(flight, result, outcome)
        self._give_back(flight, result, later)
        return outcome

    def _give_back(self, flight: InFlight, result: StepResult, later: Sequence[InFlight]) -> None:
        """What the rows needed beside tokens and blocks they may need no more."""
        for resource in self._resources:
            for request in resource.landed(flight, result, later):
                self._book.distrust(request)

    def _special(self, flight: InFlight, result: StepResult) -> set[int]:
        """Rows that bring more, or less, than one token of a request without drafts or constraint."""
        special = {*result.failed, *result.lost, *result.drafts}
        plan = flight.plan
        if plan.drafts or plan.masks:
            special.update(row for row, name in enumerate(plan.ids) if name in plan.drafts or name in plan.masks)
        return special

    def _take_in(self, flight: InFlight, row: int, result: StepResult, outcome: Outcome) -> None:
        """One row, whatever it is."""
        request, sampled = flight.requests[row], result.sampled[row]
        if row in result.failed:
            self._fail(request, flight.epochs[row], result.failed[row], outcome)
        elif row in result.lost:
            self._lose(request, flight.epochs[row], result.lost[row])
        elif request.id not in flight.plan.drafts and len(sampled) != flight.plan.samples[row]:
            wanted = flight.plan.samples[row]
            raise ContractError(f"request {request.id!r} was to get {wanted} tokens and got {len(sampled)}")
        elif self._landed(flight, row, sampled) and flight.plan.samples[row]:
            self._append(request, row, sampled, outcome)
            if row in result.drafts:
                self._propose(request, result.drafts[row])

    def _landed(self, flight: InFlight, row: int, sampled: tuple[int, ...]) -> bool:
        """The row's tokens are in the cache; whether what was sampled from them is to be appended."""
        plan, request = flight.plan, flight.requests[row]
        end, samples = plan.starts[row] + plan.counts[row], plan.samples[row]
        if request.epoch != flight.epochs[row]:
            good = request.awaits(flight.epochs[row], end)
            self._book.stats.num_stale_results += 0 if good else samples
            return good
        if request.verifying:
            self._verified(request, end, plan.drafts[request.id], sampled)
        elif end >= request.settle_at:
            request.settle_at = self._book.kv.settle(request.id, request.tokens, end)
        request.promised -= samples > 0
        return True

    def _take_pooled(self, flight: InFlight, result: StepResult, outcome: Outcome) -> None:
        """Requests that wanted one value of their prompt have it, and end."""
        wanted = frozenset(flight.plan.pools)
        for row, request in enumerate(flight.requests):
            if request.id not in wanted or row in result.failed or row in result.lost:
                continue
            if row not in result.pooled:
                raise ContractError(f"request {request.id!r} was to get a pooled value and got none")
            epoch = flight.epochs[row]
            if request.epoch == epoch or request.awaits(epoch, request.num_prompt):
                request.pooled = result.pooled[row]
                self._end(request, Event.STOP, outcome)
            else:
                self._book.stats.num_stale_results += 1

    def _lose(self, request: Request, epoch: int, num_good: int) -> None:
        """What was to be loaded for a row is missing from token ``num_good`` on, so nothing was computed."""
        request.let_down = True  # or it would be promised the same again, for ever
        if request.epoch == epoch:
            self._book.lose_tokens(request, num_good)
        else:
            self._book.distrust(request)

    def fail(self, flight: InFlight, reason: str, later: Sequence[InFlight] = ()) -> list[Request]:
        """A whole step came to nothing: its requests end with an error, nothing of it is published."""
        failed = [r for r, epoch in zip(flight.requests, flight.epochs, strict=True) if r.epoch == epoch]
        for request in failed:
            request.error = reason
            self._book.finish(request, Event.FAIL)
        # Others may have been moved, by this step or by one planned after it, with what it was to compute.
        for request in (*flight.requests, *flight.swapped_out):
            self._book.distrust(request)
        for resource in self._resources:
            for request in resource.failed(flight, later):
                self._book.distrust(request)
        self._book.wipe_again(flight.plan.zeroes)
        return failed

    def _verified(self, request: Request, end: int, drafts: tuple[int, ...], sampled: tuple[int, ...]) -> None:
        """Some of a row's drafts were right: what was computed for the others does not count."""
        right = len(sampled) - 1
        if not 0 <= right <= len(drafts) or sampled[:right] != drafts[:right]:
            raise ContractError(f"request {request.id!r} was to verify {drafts} and got {sampled}")
        stats = self._book.stats
        stats.num_drafts += len(drafts)
        stats.num_drafts_accepted += right
        request.computed -= len(drafts) - right
        request.verifying = 0
        end -= len(drafts) - right
        if end >= request.settle_at:
            # Published under the tokens that were accepted, before any of them may end the request.
            tokens = request.tokens + array("i", sampled)
            request.settle_at = self._book.kv.settle(request.id, tokens, end)

    def _propose(self, request: Request, drafts: tuple[int, ...]) -> None:
        """Take guesses for the next step, as far as the request's constraint allows them."""
        if request.promised or not request.resident:  # planned ahead without them, or preempted or ended meanwhile
            return
        if request.constraint is not None:
            drafts = _legal(request.constraint, drafts)
        request.drafts = drafts

    def _append(self, request: Request, row: int, sampled: tuple[int, ...], outcome: Outcome) -> None:
        if request.width > 1:
            self._fork(request, row, sampled, outcome)
            sampled = sampled[:1]
        for token in sampled:
            self._take(request, row, token, outcome)
            if request.finished:
                return

    def _fork(self, request: Request, row: int, sampled: tuple[int, ...], outcome: Outcome) -> None:
        """The prompt is computed: from here on each sample is a request of its own."""
        computed = min(request.computed, len(request.tokens))
        children = [self._book.fork(request, spec, computed) for spec in self._book.begin_samples(request)]
        for child, token in zip(children, sampled[1:], strict=True):
            outcome.forks.append(Fork(request, child))
            self._take(child, row, token, outcome)

    def _take(self, request: Request, row: int, token: int, outcome: Outcome) -> None:
        if request.constraint is not None and token not in request.constraint.allowed(()):
            request.error = f"token {token} was sampled, which the request's grammar does not allow"
            self._end(request, Event.FAIL, outcome)
            return
        request.tokens.append(token)
        outcome.requests.append(request)
        outcome.rows.append(row)
        outcome.tokens.append(token)
        self._end_if_due(request, token, outcome)

    def _end_if_due(self, request: Request, token: int, outcome: Outcome) -> None:
        """After ``token``, the request's last."""
        if token in request.stop_ids and len(request.tokens) > request.stop_from:
            request.stop_reason = token
            self._end(request, Event.STOP, outcome)
        elif request.constraint is not None and self._completed(request.constraint, token):
            self._end(request, Event.STOP, outcome)
        elif len(request.tokens) >= request.max_total:
            self._end(request, Event.REACH_LIMIT, outcome)
        elif self._stops:
            self._apply_stop_rules(request, outcome)

    def _completed(self, constraint: TokenConstraint, token: int) -> bool:
        """Advance; whether nothing may follow."""
        constraint.advance(token)
        return not constraint.allowed(())

    def _apply_stop_rules(self, request: Request, outcome: Outcome) -> None:
        for stop in self._stops:
            event = stop.check(request)
            if event is not None:
                self._end(request, event, outcome)
                return

    def _fail(self, request: Request, epoch: int, reason: str, outcome: Outcome) -> None:
        if request.epoch == epoch:
            request.error = reason
            self._end(request, Event.FAIL, outcome)
        else:
            self._book.distrust(request)

    def _end(self, request: Request, event: Event, outcome: Outcome) -> None:
        self._book.finish(request, event)
        outcome.finished.append(request)


def _count_nans(flight: InFlight, num_nans: Mapping[int, int]) -> None:
    """What is dropped because its request lost its row meanwhile does not count."""
    for row, count in num_nans.items():
        if flight.requests[row].epoch == flight.epochs[row]:
            flight.requests[row].num_nans += count


def _legal(constraint: TokenConstraint, drafts: tuple[int, ...]) -> tuple[int, ...]:
    """The drafts up to the first that is not allowed, or after which the text would have to end."""
    for at, token in enumerate(drafts):
        if token not in constraint.allowed(drafts[:at]) or not constraint.allowed(drafts[: at + 1]):
            return drafts[:at]
    return drafts
