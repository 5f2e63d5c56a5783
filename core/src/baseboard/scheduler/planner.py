"""Makes the plan of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from baseboard.contract.plan import KVOpKind, RowState, TableUpdate
from baseboard.kv.manager import Extension
from baseboard.request.request import RankKey, Request
from baseboard.scheduler.book import Book
from baseboard.scheduler.draft import Draft
from baseboard.scheduler.gates import Gate, Occupancy, Verdict
from baseboard.scheduler.limits import Limit
from baseboard.scheduler.preemption import Preemption
from baseboard.scheduler.ranks import Rank


@dataclass(frozen=True, slots=True)
class Roles:
    """The parts that make a policy. The planner asks them and knows none of them."""

    rank: Rank
    preemption: Preemption
    limits: tuple[Limit, ...] = ()
    gates: tuple[Gate, ...] = ()


class Planner:
    """Hands out a step's budget: to the running, then to the swapped, then to the waiting.

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

    def plan(self) -> Draft:
        draft = Draft(self._budget)
        moved = self._book.take_moved_out()
        draft.move(KVOpKind.SWAP_OUT, moved.pairs)
        draft.swapped_out.extend(moved.requests)
        self._serve_running(draft)
        if draft.preempted or moved.pairs:
            return draft  # blocks that were just taken from one must not go to the next in line
        self._serve_swapped(draft)
        if not self._book.swapped:
            self._serve_waiting(draft)
        return draft

    def _serve_running(self, draft: Draft) -> None:
        running = self._book.running
        at = 0
        while at < len(running) and draft.budget > 0:
            request = running[at]
            start = request.computed
            known = len(request.tokens) + request.promised
            if known - start == 1 and known <= request.capacity and known < request.max_total:
                request.computed = known
                request.promised += 1
                draft.add_row(request, start, 1, 1)
            elif not self._serve(request, draft):
                return  # it was the worst of all and had to give up its own blocks
            at += 1

    def _serve(self, request: Request, draft: Draft) -> bool:
        """Give a running request its share; False when it lost its blocks instead."""
        count = self._share(request, draft.budget)
        if count <= 0:
            return True
        while (extension := self._kv.extend(request.id, request.computed, count)) is None:
            victim = self._book.running[-1]
            self._evict(victim, draft)
            if victim is request:
                return False
        self._give(request, count, extension, draft)
        return True

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
        # No short cut for a request that is to be forked: its row yields n samples.
        request.capacity = extension.capacity if request.width == 1 else 0
        samples = 0
        if request.computed == request.target:
            samples = request.width
            request.promised += 1
        else:
            draft.owed.append(request)
        if extension.copy is not None:
            draft.move(KVOpKind.COPY, (extension.copy,))
        if not request.resident:
            request.resident = True
            draft.entered.append(self._row_state(request))
        elif extension.blocks:
            draft.updates.append(TableUpdate(request.id, extension.first, extension.blocks))
        draft.add_row(request, start, count, samples)

    def _row_state(self, request: Request) -> RowState:
        spec = request.spec
        return RowState(
            id=spec.id,
            token_ids=tuple(request.tokens),
            num_prompt_tokens=request.num_prompt,
            params=spec.params,
            sample_index=spec.sample_index,
            blocks=tuple(self._kv.held(spec.id)),
        )

    def _serve_swapped(self, draft: Draft) -> None:
        for request in list(self._book.swapped):
            if draft.budget <= 0 or self._verdict(request) is not Verdict.ADMIT:
                return
            if not self._share(request, draft.budget):
                return
            pairs = self._book.swap_in(request)
            if pairs is None:
                return
            draft.move(KVOpKind.SWAP_IN, pairs)
            # Room for one token came with the swap; a longer chunk takes what is there.
            count = self._share(request, draft.budget)
            extension = self._kv.extend(request.id, request.computed, count)
            while extension is None:
                count = max(1, count // 2)
                extension = self._kv.extend(request.id, request.computed, count)
            self._give(request, count, extension, draft)

    def _serve_waiting(self, draft: Draft) -> None:
        for request in list(self._book.waiting):
            if draft.budget <= 0:
                return
            verdict = self._verdict(request)
            if verdict is Verdict.CLOSE:
                return
            if verdict is Verdict.ADMIT and not self._admit(request, draft):
                return

    def _admit(self, request: Request, draft: Draft) -> bool:
        """Admit a waiting request if *all* it knows has room, so that it need not be thrown out half-way.

        Strict order: where the first has no room, nobody behind it gets any.
        """
        hit = self._book.match(request)
        spoken_for = self._spoken_for(request.rank, draft)
        if not self._kv.fits(hit, len(request.tokens), spoken_for):
            return False
        request.computed = hit.num_tokens
        count = self._share(request, draft.budget)
        if count <= 0:
            request.computed = 0
            return False
        self._book.admit(request, hit)
        extension = self._kv.extend(request.id, request.computed, count)
        assert extension is not None, "fits() said there was room"
        self._give(request, count, extension, draft)
        return True

    def _spoken_for(self, rank: RankKey, draft: Draft) -> int:
        """Blocks that better-ranked requests will still need for the rest of their prompts."""
        kv = self._kv
        return sum(
            kv.blocks_for(len(request.tokens)) - len(kv.held(request.id))
            for request in draft.owed
            if request.rank < rank
        )

    def _verdict(self, request: Request) -> Verdict:
        if not self._roles.gates:
            return Verdict.ADMIT
        occupancy = Occupancy(num_running=self._book.num_places)
        verdict = Verdict.ADMIT
        for gate in self._roles.gates:
            answer = gate.check(request, occupancy)
            if answer is Verdict.CLOSE:
                return answer
            if answer is Verdict.PASS_OVER:
                verdict = answer
        return verdict
