"""Which blocks a step computes, which are computed, and which of them several requests have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from baseboard.contract.plan import StepPlan
from baseboard.kv.manager import KVCacheManager


def written_blocks(plan: StepPlan, kv: KVCacheManager) -> Mapping[str, tuple[int, ...]]:
    """By row, the blocks of all layer groups that a plan writes to; asked before anything else is planned."""
    size = kv.block_size
    return {
        name: tuple(b for table in kv.tables(name) for b in table[start // size : kv.blocks_for(start + count)])
        for name, start, count in zip(plan.ids, plan.starts, plan.counts, strict=True)
    }


def full_blocks(kv: KVCacheManager, owner: str, num_tokens: int) -> tuple[int, ...]:
    """The blocks that the first ``num_tokens`` tokens fill; none for one whose blocks are elsewhere.

    Of the first layer group; what is out of its window's sight is the null block.
    """
    return kv.tables(owner)[0][: num_tokens // kv.block_size]


def common_beginning(tables: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The blocks that all tables begin with."""
    common: list[int] = []
    for blocks in zip(*tables, strict=False):
        if len(set(blocks)) > 1:
            break
        common.append(blocks[0])
    return tuple(common)
