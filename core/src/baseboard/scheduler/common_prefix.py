"""How many blocks all rows of a step have in common: what an attention that reads a shared beginning once must know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from baseboard.contract.plan import StepPlan


class CommonPrefix:
    """Follows the block tables from plan to plan; work is for what changes: rows that come, go or get blocks.

    ::

        row a   7 3 9 .        how many rows have it:   (0, 7): 3   (1, 3): 3   (2, 9): 1 ...
        row b   7 3 4 8        entries that all have:   the first two
        row c   7 3 4 .

    Rows that come are compared with the entries common until then; where a row goes, or gets entries, the common
    ones may become more, and the counts tell so without looking at any other table. Looks at one layer group, which
    sees whole sequences: a window's beginning is nothing that could be read once for all.
    """

    def __init__(self, block_size: int, group: int = 0) -> None:
        self._block_size: Final = block_size
        self.group: Final = group
        self._tables: Final[dict[str, list[int]]] = {}  # all that the executor holds
        self._members: set[str] = set()  # the rows of the latest plan that had any
        self._holders: Final[Counter[tuple[int, int]]] = Counter()  # members that have this block at this entry
        self._common = 0

    def report(self, plan: StepPlan) -> StepPlan:
        """The plan with its ``num_common_prefix_blocks``: entries that all tables share and no row writes to."""
        for name in plan.retired:
            self._leave(name)
            del self._tables[name]
        for state in plan.entered:
            self._tables[state.id] = list(state.tables[self.group])
        for update in plan.updates:
            if update.group == self.group:
                self._update(update.id, update.first, update.blocks)
        if plan.ids:
            self._change_members(set(plan.ids))
        written_from = min(plan.starts, default=0) // self._block_size
        return replace(plan, num_common_prefix_blocks=min(self._common, written_from))

    def _change_members(self, members: set[str]) -> None:
        for name in self._members - members:
            self._leave(name)
        for name in members - self._members:
            self._join(name)
        self._grow()

    def _join(self, name: str) -> None:
        table = self._tables[name]
        if self._members:
            other = self._tables[next(iter(self._members))]
            self._common = _agree(table, other, self._common)
        self._members.add(name)
        self._holders.update(enumerate(table))

    def _leave(self, name: str) -> None:
        if name in self._members:
            self._members.remove(name)
            self._drop(name, 0, len(self._tables[name]))
            if not self._members:
                self._common = 0

    def _update(self, name: str, first: int, blocks: Sequence[int]) -> None:
        table = self._tables[name]
        if name in self._members:
            self._drop(name, first, first + len(blocks))
            self._common = min(self._common, first)
            self._holders.update(enumerate(blocks, first))
        table[first : first + len(blocks)] = blocks

    def _drop(self, name: str, first: int, end: int) -> None:
        holders = self._holders
        for entry in enumerate(self._tables[name][first:end], first):
            holders[entry] -= 1
            if not holders[entry]:
                del holders[entry]

    def _grow(self) -> None:
        """Entries behind the common ones that every member has by now."""
        table = self._tables[next(iter(self._members))]
        count = len(self._members)
        while self._common < len(table) and self._holders[self._common, table[self._common]] == count:
            self._common += 1


def _agree(one: Sequence[int], other: Sequence[int], at_most: int) -> int:
    """How many of the first entries are equal."""
    for at in range(min(at_most, len(one), len(other))):
        if one[at] != other[at]:
            return at
    return min(at_most, len(one), len(other))
