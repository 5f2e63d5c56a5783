"""What the executor keeps of each request between steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import ContractError, RowState, StepPlan
from baseboard.runtime.sampling_rows import SamplingRow


@dataclass(slots=True)
class Row:
    """One request that the executor holds."""

    state: RowState
    tokens: list[int]  #: prompt and outputs; grows by what is sampled
    sampling: SamplingRow
    index: int  #: its line in ``RowTable.blocks``


class RowTable:
    """Rows by request id, and their block tables as one array. Owner: the executor.

    ``blocks`` is int32 ``[max_rows, max_blocks]``; a row's entries beyond its own blocks are 0, the null block.
    """

    def __init__(self, max_rows: int, max_blocks: int, eos_token_ids: frozenset[int]) -> None:
        self.blocks: Final[NDArray[np.int32]] = np.zeros((max_rows, max_blocks), dtype=np.int32)
        self._eos: Final = eos_token_ids
        self._rows: Final[dict[str, Row]] = {}
        self._free: Final = list(range(max_rows - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def __getitem__(self, row_id: str) -> Row:
        return self._rows[row_id]

    def apply(self, plan: StepPlan) -> None:
        """Bring the rows up to what ``plan`` assumes. Raises ``ContractError`` for a plan that contradicts them."""
        for row_id in plan.retired:
            self._free.append(self._rows.pop(row_id).index)
        for state in plan.entered:
            self._enter(state)
        for update in plan.updates:
            line = self.blocks[self._rows[update.id].index]
            line[update.first : update.first + len(update.blocks)] = update.blocks

    def stop_ids(self, state: RowState) -> frozenset[int]:
        """Tokens that end this row's text, and so may not come before ``min_tokens``."""
        own = frozenset(state.params.stop_token_ids)
        return own if state.params.ignore_eos else own | self._eos

    def sampling_row(self, state: RowState) -> SamplingRow:
        """Raises ``ContractError`` for a row that draws and has no seed: the engine gives every request one."""
        if state.params.seed is None and not state.params.greedy:
            raise ContractError(f"row {state.id!r} draws its tokens but has no seed")
        return SamplingRow(state, state.params.seed or 0, self.stop_ids(state))

    def _enter(self, state: RowState) -> None:
        if state.id in self._rows:
            raise ContractError(f"row {state.id!r} enters but was never retired")
        if not self._free:
            raise ContractError(f"row {state.id!r} enters, but all {len(self._rows)} rows are taken")
        if len(state.tables) != 1:
            raise ContractError(f"row {state.id!r} has {len(state.tables)} block tables; this executor keeps one")
        (blocks,) = state.tables
        index = self._free.pop()
        line = self.blocks[index]
        line[:] = 0
        line[: len(blocks)] = blocks
        self._rows[state.id] = Row(state, list(state.token_ids), self.sampling_row(state), index)
