"""The host side of swapping: a pool whose blocks hold one sequence's KV until it comes back."""

from __future__ import annotations

from baseboard.kv.pool import BlockPool
from baseboard.kv.prefix import NoPrefixIndex


def host_pool(num_blocks: int) -> BlockPool:
    """Host blocks ``0 .. num_blocks - 1``: no padding is ever written there, so there is no null block."""
    return BlockPool(num_blocks, NoPrefixIndex(), first=0)
