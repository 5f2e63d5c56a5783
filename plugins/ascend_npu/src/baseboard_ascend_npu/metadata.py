"""What the kernels need of one step, made once for all layers of a group."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import StepBatch
from baseboard_ascend_npu.gathering import HostRows, RowGroup, Selection, row_groups
from baseboard_ascend_npu.host import Upload
from baseboard_ascend_npu.limits import MAX_SEQUENCES


class StepMetadata:
    """Lengths stay on the host, because the operators take them there; tables and slots go to the device.

    The batch's arrays are copied: the core writes them anew for the next step while this one may still run.
    """

    def __init__(self, batch: StepBatch, block_size: int, upload: Upload) -> None:
        if batch.num_seqs > MAX_SEQUENCES:
            raise ValueError(
                f"a step of {batch.num_seqs} sequences is more than the {MAX_SEQUENCES} that the NPU's attention "
                f"operators take: lower max_num_seqs"
            )
        self.num_tokens: Final = batch.num_tokens
        self.num_decodes: Final = batch.num_decodes
        self.causal: Final = batch.causal
        self.query_ends: Final[list[int]] = batch.query_start_loc[1:].tolist()  #: cumulative, without the leading 0
        self.lengths: Final[list[int]] = batch.seq_lens.tolist()  #: plain: cumulative is for caches without pages
        self._rows: Final = HostRows(
            starts=batch.query_start_loc.astype(np.int64),
            lengths=batch.seq_lens.astype(np.int64),
            tables=batch.block_tables.astype(np.int64),
            num_decodes=batch.num_decodes,
            block_size=block_size,
            causal=batch.causal,
        )
        self._upload: Final = upload
        self._groups: Final[dict[Selection, tuple[RowGroup, ...]]] = {}

        #: Which of the step's tokens to store, int64; None: all. The operator forbids that two share a slot.
        self.stored: torch.Tensor | None = None
        kept = _first_of_each(batch.slot_mapping, block_size)
        slots = batch.slot_mapping
        if len(kept) < len(slots):
            slots = slots[kept]
            self.stored = upload(kept)
        tables, slots = upload.together(batch.block_tables, slots)
        self.tables: Final = tables  #: int32 ``[S, M]``
        self.slots: Final = slots  #: int32, one for each stored token
        #: Host memory on purpose, int32 ``[num_decodes]``: the paged operator reads it when it runs.
        self.decode_lengths: Final = torch.tensor(self.lengths[: batch.num_decodes], dtype=torch.int32)

    def take(self, other: StepMetadata) -> None:
        """Let the tensors of this one have the numbers of ``other``, of a step of the same shapes, in stream order.

        Lengths stay as they are: the operators took them when they were told. ``ValueError`` for another shape.
        """
        shapes = [(tuple(step.tables.shape), tuple(step.slots.shape)) for step in (self, other)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"a step with tables and slots of shapes {shapes[1]} cannot be replayed as one of {shapes[0]}: "
                f"pad it to that, with a slot of its own for each token"
            )
        self.tables.copy_(other.tables)
        self.slots.copy_(other.slots)

    def groups(self, selection: Selection) -> tuple[RowGroup, ...]:
        """The rows that layers gather for themselves; made on first use, kept for the layers after."""
        if selection not in self._groups:
            self._groups[selection] = tuple(row_groups(self._rows, selection, self._upload))
        return self._groups[selection]


def _first_of_each(slots: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
    """Indices of the tokens to store: of several with one slot of the null block, which pads, the first."""
    padding = np.flatnonzero(slots < block_size)
    _, first = np.unique(slots[padding], return_index=True)
    keep = slots >= block_size
    keep[padding[first]] = True
    return np.flatnonzero(keep)
