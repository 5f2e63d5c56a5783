"""The blocks of one sequence, in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from baseboard.kv.prefix import KeyChain


@dataclass(slots=True)
class BlockTable:
    """Entry ``i`` holds tokens ``i * B .. (i + 1) * B - 1``. Owner: the KV manager."""

    keys: KeyChain
    blocks: list[int] = field(default_factory=list[int])
    host_blocks: list[int] = field(default_factory=list[int])  #: while swapped out, instead of ``blocks``
    num_published: int = 0  #: leading blocks that the prefix index has been told of
    outdated: bool = False  #: older than the last reset of the index, which hears of it no more
