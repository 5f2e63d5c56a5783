"""Makes the plan of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from baseboard.contract.plan import KVOpKind, Load, RowState
from baseboard.kv.group import PrefixHit
from baseboard.kv.manager import Extension
from baseboard.request.request import RankKey, Request
from baseboard.request.status import Event, Status
from baseboard.scheduler.book import Book
from baseboard.scheduler.common_prefix import CommonPrefix
from baseboard.scheduler.draft import Draft
from baseboard.scheduler.faults import Faults
from baseboard.scheduler.gates import Gate, StepInputs, Verdict
from baseboard.scheduler.limits import Limit
from baseboard.scheduler.observers import Observer, Recorder
from baseboard.scheduler.orders import Continuous, Order
from baseboard.scheduler.preemption import Preemption
from baseboard.scheduler.ranks import Rank
from baseboard.scheduler.resources import Resource
from baseboard.scheduler.sources import Found, Landing, Place, PrefixSource, Sending
from baseboard.scheduler.stop import StopRule
from baseboard.scheduler.turn import StepTurn


@dataclass(frozen=True, slots=True)
class Roles:
    """The parts that make a policy. The planner asks them and knows none of them."""

    rank: Rank
    preemption: Preemption
    order: Order = field(default_factory=Continuous)
    limits: tuple[Limit, ...] = ()
    gates: tuple[Gate, ...] = ()
    observers: tuple[Observer, ...] = ()
    stops: tuple[StopRule, ...] = ()
    sources: tuple[PrefixSource, ...] = ()
    resources: tuple[Resource, ...] = ()
    faults: Faults = field(default_factory=Faults)  #: where guards around other parties' roles report
    recorder: Recorder | None = None
    common_prefix: CommonPrefix | None = None  #: plans tell what all rows' tables begin with


_NOTHING: Final = Found(0, Landing.NOW)


class Planner:
    """Hands out a step's budget, to the running, the swapped and the waiting, in the order that the policy says.

    Every request has tokens it knows and tokens that are computed; a step lets ``computed`` catch up. Chunked
    prefill, prefix hits and coming back after a preemption are that one subtraction. Running requests are visited
    best rank first, and blocks are taken back from the worst: so a victim is never in the plan already, and
    nothing is ever rolled back.
    """

    def __init__(self, book: Book, roles: Roles, budget: int) -> None:
        self._book: Final = book
        self._kv: Final = book.kv
        self._roles: Final = roles
        self._budget: Final = budget
        # A source hands over a sequence from its beginning; layers that see a window have no place for that.
        self._sources: Final = () if book.kv.windowed else roles.sources
        self._kept_waiting: Request | None = None  # runs, and the blocks that it needs are on their way

    def plan(self, inputs: StepInputs) -> Draft:
        budget = self._budget if inputs.budget is None else min(inputs.budget, self._budget)
        turn = StepTurn(self, self._book, Draft(budget), inputs)
        for observer in self._roles.observers:
            observer.begin_step(turn)
        for resource in self._roles.resources:
            resource.begin_step(turn.draft)
        moved = self._book.take_moved_out()
        turn.draft.move(KVOpKind.SWAP_OUT, moved.pairs)
        turn.draft.swapped_out.extend(moved.requests)
        if self._kept_waiting is not None:
            # Blocks were taken back for it; until it has them nobody comes in.
            turn.draft.preempted += self._kept_waiting.status is Status.RUNNING
            self._kept_waiting = None
        self._roles.order.serve(turn)
        for request in turn.draft.owed:
            if request.idle:
                self._book.move(request, Event.AWAIT_INPUT)
        return turn.draft

    def serve_running(self, turn: StepTurn) -> None:
        draft = turn.draft
        running = self._book.running.items
        at = 0
        while at < len(running) and draft.budget > 0:
            at += draft.add_decodes(running, at)
            if at < len(running) and draft.budget > 0:
                self._serve(running[at], draft)
                at += 1

    def _serve(self, request: Request, draft: Draft) -> None:
        """Give a running request its share. The worst of all may lose its own blocks instead."""
        count = self._share(request, draft.budget)
        if count <= 0:
            return
        while (extension := self._kv.extend(request.id, request.computed, count)) is None:
            needed = len(request.tokens) + request.promised - request.computed
            if count > needed:
                count = needed  # guesses are not worth anybody's blocks
                continue
            if self._kv.pool.num_coming:
                self._kept_waiting = self._kept_waiting or request
                return
            victim = self._book.victim
            self._evict(victim, draft)
            if victim is request:
                return
        self._give(request, count, extension, draft)

    def _make_way(self, draft: Draft) -> None:
        """Nobody gets room and nobody runs who could free some: one who holds blocks and waits lets go of them."""
        if not draft.ids and not self._book.running and not self._kv.pool.num_coming:
            holders = self._book.idle_holders
            if holders:
                self._evict(holders[-1], draft)

    def _evict(self, victim: Request, draft: Draft) -> None:
        pairs = self._book.preempt(victim, self._roles.preemption)
        draft.preempted += 1
        if pairs:
            draft.move(KVOpKind.SWAP_OUT, pairs)
            draft.swapped_out.append(victim)

    def _share(self, request: Request, budget: int) -> int:
        """Tokens that a request may compute now."""
        want = request.target - request.computed
        for limit in self._roles.limits:
            want = limit.clip(request, want, budget)
        return min(want, budget)

    def _give(self, request: Request, count: int, extension: Extension, draft: Draft) -> None:
        """Enter a row whose room is made."""
        start = request.computed
        request.computed = start + count
        # No short cut for a row that yields n samples, or one that needs a mask.
        request.capacity = extension.capacity if request.plain else 0
        samples = 0
        beyond = request.computed - min(len(request.tokens) + request.promised, request.max_total - 1)
        if beyond >= 0:
            samples = request.num_samples
            if samples:
                self._sample(request, beyond, draft)
            else:
                draft.pools.append(request.id)
        else:
            draft.owed.append(request)
        draft.move(KVOpKind.COPY, extension.copies)
        if not request.resident:
            request.resident = True
            draft.entered.append(self._enter(request))
        else:
            draft.updates.extend(extension.updates)
        for resource in self._roles.resources:
            resource.take(request, count, draft)
        draft.add_row(request, start, count, samples)

    def _sample(self, request: Request, num_drafts: int, draft: Draft) -> None:
        """The row reaches its last known token, and ``num_drafts`` guesses beyond it."""
        guessed = request.drafts[:num_drafts]
        request.promised += 1
        request.drafts = ()
        request.verifying = num_drafts
        if num_drafts:
            draft.drafts[request.id] = guessed
        if request.constraint is not None:
            allowed = request.constraint.allowed
            draft.masks[request.id] = tuple(frozenset(allowed(guessed[:at])) for at in range(num_drafts + 1))

    def _enter(self, request: Request) -> RowState:
        spec = request.spec
        return RowState(
            id=spec.id,
            token_ids=tuple(request.tokens),
            num_prompt_tokens=request.num_prompt,
            params=spec.params,
            sample_index=spec.sample_index,
            tables=self._kv.tables(spec.id),
            media=spec.media,
            cross=self._kv.cross(spec.id),
            num_source_tokens=len(spec.source),
            source=spec.source if self._kv.begin_cross(spec.id) else (),
        )

    def serve_swapped(self, turn: StepTurn) -> None:
        draft = turn.draft
        for request in list(self._book.swapped):
            if draft.budget <= 0 or self._verdict(request, turn) is not Verdict.ADMIT:
                return
            count = self._share(request, draft.budget)
            if count <= 0:
                if self._awaits(request):
                    continue
                return
            # Room for one token comes with the swap, a longer chunk takes what is there; what is not to be split
            # comes in when there is room for it.
            least = 1 if self._share(request, 1) > 0 else count
            pairs = self._book.swap_in(request, least)
            if pairs is None:
                self._make_way(draft)
                return
            draft.move(KVOpKind.SWAP_IN, pairs)
            while (extension := self._kv.extend(request.id, request.computed, count)) is None:
                assert count > least, "swap_in() made room for so many"
                count = self._share(request, count // 2) or least
            self._give(request, count, extension, draft)

    def serve_waiting(self, turn: StepTurn) -> None:
        draft = turn.draft
        for request in list(self._book.waiting):
            if draft.budget <= 0:
                return
            verdict = self._verdict(request, turn)
            if verdict is Verdict.CLOSE:
                return
            if verdict is Verdict.ADMIT and not self._admit(request, turn):
                return

    def _admit(self, request: Request, turn: StepTurn) -> bool:
        """Admit a waiting request if *all* it knows has room, so that it need not be thrown out half-way.

        Strict order: where the first has no room, nobody behind it gets any.
        """
        draft = turn.draft
        hit = self._book.match(request)
        spoken_for = self._spoken_for(request.rank, draft) + self._kv.apart(request.id)
        if not self._kv.fits(hit, len(request.tokens), spoken_for):
            self._make_way(draft)
            return False
        source, found = self._find_outside(request, hit)
        if source is not None and found.landing is Landing.LATER:
            self._await(request, hit, source, found, draft)
            return True
        begin = hit.num_tokens + found.num_tokens
        request.computed = begin
        count = self._share(request, draft.budget)
        if count <= 0:
            request.computed = 0
            return self._awaits(request)
        self._book.admit(request, hit, found.num_tokens)
        extension = self._kv.extend(request.id, hit.num_tokens, begin + count - hit.num_tokens)
        assert extension is not None, "fits() said there was room"
        if found.num_tokens:
            draft.loads.append(Load(request.id, hit.num_tokens, found.num_tokens))
        self._give(request, count, extension, draft)
        self._tell(request, turn)
        return True

    def _awaits(self, request: Request) -> bool:
        """Whether a request that gets nothing waits for something outside, so that others may pass it."""
        return any(resource.awaits(request) for resource in self._roles.resources)

    def _find_outside(self, request: Request, hit: PrefixHit) -> tuple[PrefixSource | None, Found]:
        """The first source that has more than the local cache; for a whole prompt only."""
        if request.input_open or request.let_down:
            return None, _NOTHING
        for source in self._sources:
            found = source.find(request, hit.num_tokens)
            if found is not None and found.num_tokens > 0:
                return source, found
        return None, _NOTHING

    def _await(self, request: Request, hit: PrefixHit, source: PrefixSource, found: Found, draft: Draft) -> None:
        self._book.await_remote(request, hit, found.num_tokens)
        place = Place(tuple(self._kv.held(request.id)), hit.num_tokens, found.num_tokens)
        sending = Sending(source, request, place)
        self._book.sendings[request] = sending
        draft.sendings.append(sending)

    def _tell(self, request: Request, turn: StepTurn) -> None:
        for observer in self._roles.observers:
            observer.admitted(request, turn)

    def serve_loaded(self, turn: StepTurn) -> None:
        """Requests whose keys and values have come from outside, before anybody who has none yet."""
        draft = turn.draft
        for request in list(self._book.loaded):
            if draft.budget <= 0 or self._verdict(request, turn) is not Verdict.ADMIT:
                return
            count = self._share(request, draft.budget)
            if count <= 0:
                return
            extension = self._kv.extend(request.id, request.computed, count)
            if extension is None:
                if self._book.idle_holders:
                    self._make_way(draft)
                elif not draft.ids and not self._book.running and not self._kv.pool.num_coming:
                    # Nobody runs who could free blocks: those who only hold some have to let go, the last first.
                    self._book.give_up_blocks(self._book.loaded.items[-1])
                return
            self._book.move(request, Event.ADMIT)
            self._give(request, count, extension, draft)
            self._tell(request, turn)

    def _spoken_for(self, rank: RankKey, draft: Draft) -> int:
        """Blocks that better-ranked requests will still need for the rest of their prompts."""
        kv = self._kv
        better = (request for request in draft.owed if request.rank < rank)
        return sum(kv.lacking(request.id, len(request.tokens)) for request in better)

    def _verdict(self, request: Request, turn: StepTurn) -> Verdict:
        verdict = Verdict.ADMIT
        for gate in self._roles.gates:
            answer = gate.check(request, turn)
            if answer is Verdict.CLOSE:
                return answer
            if answer is Verdict.PASS_OVER:
                verdict = answer
        return verdict
