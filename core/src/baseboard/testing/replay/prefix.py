"""The prefix cache alone on a trace: one request at a time, counted in the trace's own blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baseboard.kv.group import PoolShape
from baseboard.kv.manager import KVCacheManager
from baseboard.kv.prefix import PrefixIndex
from baseboard.testing.replay.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class PrefixCount:
    asked: int  #: blocks of all prompts
    hits: int  #: of those, found in the cache

    @property
    def ratio(self) -> float:
        return self.hits / self.asked if self.asked else 0.0


def count_prefix_hits(trace: Sequence[TraceRequest], num_blocks: int) -> PrefixCount:
    """Replay the prompts through a KV manager of ``num_blocks`` blocks beside what one request needs to run.

    One hash id is one token and one block here, so a hit is counted in blocks; the last token of every prompt is one
    of its own, so that all ids of a prompt may hit (a request always computes its last token).
    """
    kv = KVCacheManager(PoolShape(num_blocks + 1, 1), 0, PrefixIndex())
    asked = hits = 0
    for request in trace:
        owner = str(request.number)
        tokens = (*request.shared, -1 - request.number)
        if len(tokens) > num_blocks + 1:
            asked += len(request.shared)
            continue
        kv.open(owner)
        hit = kv.match(owner, tokens)
        kv.admit(owner, hit)
        extension = kv.extend(owner, hit.num_tokens, len(tokens) - hit.num_tokens)
        assert extension is not None, "one request at a time always has room"
        # The token of its own is not published: nobody could ever hit it, it would only push others out.
        kv.settle(owner, tokens, len(request.shared))
        kv.close(owner)
        asked += len(request.shared)
        hits += hit.num_tokens
    return PrefixCount(asked, hits)
