"""A step plan while it is being made."""

from __future__ import annotations

from collections.abc import Sequence

from baseboard.contract.media import ContentId, EncoderInput
from baseboard.contract.plan import BlockPair, KVOp, KVOpKind, Load, RowState, StepPlan, TableUpdate
from baseboard.request.request import Request
from baseboard.scheduler.sources import Sending


class Draft:
    """Columns that grow row by row. A row once added is never taken out again."""

    __slots__ = (
        "_moves",
        "budget",
        "counts",
        "drafts",
        "encoder_drops",
        "encoder_loads",
        "encodes",
        "entered",
        "ids",
        "loads",
        "masks",
        "owed",
        "pools",
        "preempted",
        "requests",
        "samples",
        "sendings",
        "starts",
        "swapped_out",
        "updates",
    )

    def __init__(self, budget: int) -> None:
        self.budget = budget  #: tokens left
        self.requests: list[Request] = []
        self.ids: list[str] = []
        self.starts: list[int] = []
        self.counts: list[int] = []
        self.samples: list[int] = []
        self.entered: list[RowState] = []
        self.updates: list[TableUpdate] = []
        self.loads: list[Load] = []
        self.drafts: dict[str, tuple[int, ...]] = {}
        self.masks: dict[str, tuple[frozenset[int], ...]] = {}
        self.encodes: list[EncoderInput] = []
        self.encoder_loads: list[EncoderInput] = []
        self.encoder_drops: list[ContentId] = []
        self.pools: list[str] = []
        self.preempted = 0  #: requests evicted for this step
        self.swapped_out: list[Request] = []  #: those whose blocks this plan moves to the host
        self.sendings: list[Sending] = []  #: to begin when this step has run
        #: requests of this step whose prompt goes on in later steps
        self.owed: list[Request] = []
        self._moves: list[tuple[KVOpKind, list[BlockPair]]] = []

    def add_row(self, request: Request, start: int, count: int, samples: int) -> None:
        self.requests.append(request)
        self.ids.append(request.id)
        self.starts.append(start)
        self.counts.append(count)
        self.samples.append(samples)
        self.budget -= count

    def add_decodes(self, running: Sequence[Request], begin: int) -> int:
        """Rows for the requests from ``begin`` on, up to the first that needs more than a look at itself.

        That is, all but those that lack exactly their next token and have room for it. Returns how many rows were
        added. Nearly every request of nearly every step goes through here.
        """
        add_request, add_start, add_id = self.requests.append, self.starts.append, self.ids.append
        end = min(len(running), begin + self.budget)
        at = begin
        while at < end:
            request = running[at]
            start = request.computed
            known = len(request.tokens) + request.promised
            if known - start != 1 or known > request.capacity or known >= request.max_total or request.drafts:
                break
            request.computed = known
            request.promised += 1
            add_request(request)
            add_start(start)
            add_id(request.id)
            at += 1
        count = at - begin
        self.counts.extend([1] * count)
        self.samples.extend([1] * count)
        self.budget -= count
        return count

    def move(self, kind: KVOpKind, pairs: tuple[BlockPair, ...]) -> None:
        """Append block moves; they join the last batch where order within it cannot matter."""
        if not pairs:
            return
        if (
            self._moves
            and self._moves[-1][0] is kind
            and not (kind is KVOpKind.COPY and _conflict(self._moves[-1][1], pairs))
        ):
            self._moves[-1][1].extend(pairs)
        else:
            self._moves.append((kind, list(pairs)))

    def freeze(self, step: int, retired: tuple[str, ...], zeroes: tuple[int, ...]) -> StepPlan:
        return StepPlan(
            step=step,
            ids=tuple(self.ids),
            starts=tuple(self.starts),
            counts=tuple(self.counts),
            samples=tuple(self.samples),
            entered=tuple(self.entered),
            retired=retired,
            loads=tuple(self.loads),
            drafts=self.drafts,
            masks=self.masks,
            pools=tuple(self.pools),
            zeroes=zeroes,
            updates=tuple(self.updates),
            encodes=tuple(self.encodes),
            encoder_loads=tuple(self.encoder_loads),
            encoder_drops=tuple(self.encoder_drops),
            kv_ops=tuple(KVOp(kind, tuple(pairs)) for kind, pairs in self._moves),
        )


def _conflict(batch: list[BlockPair], pairs: tuple[BlockPair, ...]) -> bool:
    """Whether a block would be source and destination, or destination twice, in one batch of copies.

    It happens when a block is copied from, then freed by an eviction, and handed out again within one step.
    """
    sources = {pair.source for pair in batch}
    destinations = {pair.destination for pair in batch}
    return any(p.destination in sources | destinations or p.source in destinations for p in pairs)
