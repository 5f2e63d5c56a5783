"""Encoder inputs: what of them a step computes, keeps and gives up, and how far that lets a request go."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from baseboard.contract.errors import ContractError
from baseboard.contract.media import ContentId, EncoderInput, MediaSpan
from baseboard.contract.plan import StepResult
from baseboard.kv.encoder import EncoderCache
from baseboard.request.request import Request, RequestSpec
from baseboard.scheduler.draft import Draft
from baseboard.scheduler.encoder_rules import EncoderRules
from baseboard.scheduler.inflight import InFlight
from baseboard.scheduler.sources import EncoderSource, Landing
from baseboard.scheduler.splitting import spans_within


class _Obstacle(Enum):
    UNITS = "units"  #: computing it, or the room to keep it, is spent
    OUTSIDE = "outside"  #: it is on its way here


@dataclass(frozen=True, slots=True)
class _Reach:
    """How far a request can go, and what is in its way there."""

    end: int
    obstacle: _Obstacle | None = None


@dataclass(slots=True)
class _Holding:
    """Which of a request's inputs it uses, by index, and the step in which it last had a row that needed any."""

    inputs: set[int] = field(default_factory=set[int])
    step: int = 0


@dataclass(frozen=True, slots=True)
class _Use:
    """A row under way that covers inputs."""

    request: Request
    epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    uses: list[_Use] = field(default_factory=list[_Use])


@dataclass(slots=True)
class EncoderStats:
    num_computed: int = 0  #: inputs run through the encoder
    num_loaded: int = 0  #: fetched from outside instead
    num_hits: int = 0  #: found in the encoder cache
    num_lost: int = 0  #: were to be fetched and turned out to be missing


class EncoderInputs:
    """A ``Limit`` and a ``Resource``: a chunk ends before an input that cannot be had now.

    An input is *had* when it is in the encoder cache, or can be fetched from outside, or computed within the step's
    budget, and the cache has room to keep it. It is kept for a request from the first row that covers one of its
    positions until the result of the row that covers the last::

        prompt   t t [ x x x x x x ] t t [ y y y ] t
        rows     <----- 1 -----> <------ 2 ------>
        x is held    from plan 1 to result 2; y from plan 2 to result 2

    No two requests wait for each other: units are taken together with a row, so one that waits for units stands
    before an input and holds none of those behind it; and one that had no row in a step keeps nothing for the next.
    Nobody starves: once one could not have an input, nobody behind it is given any in that step.
    """

    def __init__(self, rules: EncoderRules, sources: tuple[EncoderSource, ...] = ()) -> None:
        self.stats: Final = EncoderStats()
        self.cache: Final = EncoderCache(rules.limits.units_kept)
        self.limits: Final = rules.limits
        self._rules: Final = rules
        self._sources: Final = sources
        self._holdings: Final[dict[Request, _Holding]] = {}
        self._fresh: Final[dict[ContentId, int]] = {}  # encodings that a step under way makes, and its number
        self._under_way: Final[deque[_Step]] = deque()
        self._dropped: Final[list[ContentId]] = []  # to be said in the next plan
        self._number = 0
        # of the step that is being made
        self._budget = 0
        self._first_refused: Request | None = None
        self._awaiting: Final[set[Request]] = set()
        self._answers: Final[dict[ContentId, Landing | None]] = {}

    def check(self, spec: RequestSpec) -> None:
        self._rules.check(spec)

    # --- while a step is made ---------------------------------------------------------------------------------

    def begin_step(self, draft: Draft) -> None:
        for request in [r for r, holding in self._holdings.items() if holding.step != self._number]:
            self.give_back(request)
        self._number += 1
        self._under_way.append(_Step(self._number))
        self._budget = self.limits.units_per_step
        self._first_refused = None
        self._awaiting.clear()
        self._answers.clear()
        draft.encoder_drops.extend(self._dropped)
        self._dropped.clear()

    def begin(self, request: Request, num_cached: int) -> int:
        """A hit that ends within an input needs it all the same: where it cannot be had, the hit ends before it."""
        media = request.spec.media
        for at in spans_within(media, num_cached, num_cached + 1):
            if media[at].offset < num_cached and self._reach(request, num_cached, num_cached + 1).obstacle:
                return media[at].offset
        return num_cached

    def awaits(self, request: Request) -> bool:
        return request in self._awaiting

    def clip(self, request: Request, want: int, budget: int) -> int:
        media, start = request.spec.media, request.computed
        if not media or start >= media[-1].end or min(want, budget) <= 0:
            return want
        wanted = start + min(want, budget)
        reach = self._reach(request, start, wanted)
        if reach.obstacle is _Obstacle.OUTSIDE:
            self._awaiting.add(request)
        elif reach.obstacle is _Obstacle.UNITS and self._first_refused is None:
            self._first_refused = request
        return self._rules.splitting.end(media, start, wanted, reach.end) - start

    def take(self, request: Request, count: int, draft: Draft) -> None:
        media, end = request.spec.media, request.computed
        if not media or end - count >= media[-1].end:
            return
        if end < media[-1].end:
            request.capacity = 0  # no short cut past an input
        covered = spans_within(media, end - count, end)
        if not covered:
            return
        holding = self._holdings.setdefault(request, _Holding())
        holding.step = self._number
        new = [at for at in covered if at not in holding.inputs]
        # What is there already is taken first, lest it be given up for the others.
        for at in sorted(new, key=lambda at: media[at].content_id not in self.cache):
            self._acquire(request, media[at], draft)
        holding.inputs.update(new)
        self._under_way[-1].uses.append(_Use(request, request.epoch, end))

    def _acquire(self, request: Request, span: MediaSpan, draft: Draft) -> None:
        content = span.content_id
        if content in self.cache:
            self.stats.num_hits += 1
        else:
            self._fresh[content] = self._number
            if self._outside(request, content) is Landing.NOW:
                self.stats.num_loaded += 1
                draft.encoder_loads.append(EncoderInput(request.id, span))
            else:
                self.stats.num_computed += 1
                self._budget -= span.cost
                draft.encodes.append(EncoderInput(request.id, span))
        for dropped in self.cache.acquire(content, span.cost):
            self._fresh.pop(dropped, None)
            draft.encoder_drops.append(dropped)

    def _reach(self, request: Request, start: int, end: int) -> _Reach:
        media = request.spec.media
        holding = self._holdings.get(request)
        held = holding.inputs if holding else ()
        budget, room = self._budget, self.cache.room
        closed = self._first_refused not in {None, request}
        counted: set[ContentId] = set()
        for at in spans_within(media, start, end):
            content, cost = media[at].content_id, media[at].cost
            if at in held or content in counted:
                continue
            counted.add(content)
            cached = content in self.cache
            landing = None if cached else self._outside(request, content)
            units = self.cache.units_to_hold(content, cost)
            compute = 0 if cached or landing else cost
            if landing is Landing.LATER:
                return _Reach(max(start, media[at].offset), _Obstacle.OUTSIDE)
            if (units or compute) and (closed or units > room or compute > budget):
                return _Reach(max(start, media[at].offset), _Obstacle.UNITS)
            room -= units
            budget -= compute
        return _Reach(end)

    def _outside(self, request: Request, content: ContentId) -> Landing | None:
        """What the sources say; within one step the same."""
        if request.let_down:
            return None
        if content not in self._answers:
            answers = (source.find(content) for source in self._sources)
            self._answers[content] = next((answer for answer in answers if answer is not None), None)
        return self._answers[content]

    # --- when results are in ----------------------------------------------------------------------------------

    def landed(self, flight: InFlight, result: StepResult, later: Sequence[InFlight]) -> Iterable[Request]:
        step = self._under_way.popleft()
        for use in step.uses:
            if use.request.epoch == use.epoch:
                self._used_up_to(use.request, use.end)
        untrusted = self._lose(step, flight, result, later) if result.encoder_lost else ()
        self._settle(step, flight)
        return untrusted

    def failed(self, flight: InFlight, later: Sequence[InFlight]) -> Iterable[Request]:
        step = self._under_way.popleft()
        made = [each.span.content_id for each in (*flight.plan.encodes, *flight.plan.encoder_loads)]
        return self._undo(step, made, later)

    def give_back(self, request: Request) -> None:
        holding = self._holdings.pop(request, None)
        if holding is not None:
            for at in holding.inputs:
                self.cache.release(request.spec.media[at].content_id)

    def reset(self) -> None:
        """All is dropped; who is in the middle of an input has it made again."""
        for request in list(self._holdings):
            self.give_back(request)
        for content in self.cache.forget_idle():
            self._fresh.pop(content, None)
            self._dropped.append(content)

    def _used_up_to(self, request: Request, end: int) -> None:
        holding = self._holdings.get(request)
        if holding is None:
            return
        media = request.spec.media
        for at in [at for at in holding.inputs if media[at].end <= end]:
            holding.inputs.remove(at)
            self.cache.release(media[at].content_id)
        if not holding.inputs:
            del self._holdings[request]

    def _settle(self, step: _Step, flight: InFlight) -> None:
        for each in (*flight.plan.encodes, *flight.plan.encoder_loads):
            if self._fresh.get(each.span.content_id) == step.number:
                del self._fresh[each.span.content_id]

    def _lose(self, step: _Step, flight: InFlight, result: StepResult, later: Sequence[InFlight]) -> Iterable[Request]:
        """What was to come from outside is not there: who needs it computes it."""
        lost = set(result.encoder_lost)
        if not lost <= {each.span.content_id for each in flight.plan.encoder_loads}:
            raise ContractError(f"step {result.step} lost encodings {lost}, not all of which it was to load")
        rows = set(_rows_that_read(flight, lost))
        if not rows <= set(result.lost):
            raise ContractError(f"step {result.step} lost encodings {lost}, but computed rows that need them")
        self.stats.num_lost += len(lost)
        untrusted = self._undo(step, lost, later)
        for request in (*(flight.requests[row] for row in rows), *untrusted):
            request.let_down = True  # or it would be promised the same again, for ever
        return untrusted

    def _undo(self, step: _Step, made: Iterable[ContentId], later: Sequence[InFlight]) -> list[Request]:
        """Encodings that the step was to make are not there; returns who counts on them in ``later`` plans."""
        gone = {content for content in made if self._fresh.get(content) == step.number}
        untrusted = [each.requests[row] for each in later for row in _rows_that_read(each, set(made))]
        for request in untrusted:
            self.give_back(request)
        for content in gone:
            del self._fresh[content]
            self.cache.forget(content)
        return untrusted

    def check_store(self, contents: Collection[ContentId]) -> None:
        """Raise ``AssertionError`` unless an executor with nothing under way holds what it should."""
        held, kept = set(contents), self.cache.contents
        assert kept <= held <= kept | set(self._dropped), f"the executor holds encodings {held}, and should hold {kept}"

    def check_books(self) -> None:
        holdings = self._holdings.items()
        self.cache.check(r.spec.media[at].content_id for r, holding in holdings for at in holding.inputs)
        for request, holding in holdings:
            assert holding.inputs, f"{request!r} is kept for nothing"
            assert not request.finished, f"{request!r} has ended and still uses encodings"


def _rows_that_read(flight: InFlight, contents: Collection[ContentId]) -> Iterable[int]:
    """Rows of a plan that cover positions of these inputs."""
    plan = flight.plan
    for row, request in enumerate(flight.requests):
        media, start = request.spec.media, plan.starts[row]
        covered = spans_within(media, start, start + plan.counts[row])
        if any(media[at].content_id in contents for at in covered):
            yield row
