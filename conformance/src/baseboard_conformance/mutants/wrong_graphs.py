"""Wrong with recorded steps: what a replay takes from the step that was recorded, and not from its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from baseboard.contract import Unsupported
from baseboard_conformance.mutants.plain_kernel import Metadata
from baseboard_conformance.mutants.recording import Recorder, Recording, TapeGraph


class ReplaysOldLengths(Recording):
    """A replay has the lengths of the step that was recorded."""

    class Graph(TapeGraph):
        def take(self, old: Metadata, new: Metadata) -> None:
            old.tables[...] = new.tables
            old.slots[...] = new.slots


class ReplaysOldSlots(Recording):
    """A replay writes to the slots of the step that was recorded."""

    class Graph(TapeGraph):
        def take(self, old: Metadata, new: Metadata) -> None:
            old.lengths[...] = new.lengths
            old.tables[...] = new.tables


class ReplaysOldTables(Recording):
    """A row's block table is taken over when its length says that it is new, or another sequence's: no other time."""

    class Graph(TapeGraph):
        def take(self, old: Metadata, new: Metadata) -> None:
            grown = (old.lengths - 1) // old.block_size != (new.lengths - 1) // new.block_size
            fresh = grown | (np.abs(new.lengths - old.lengths) > 1) | (old.tables[:, 0] == 0)
            old.tables[fresh] = new.tables[fresh]
            old.lengths[...] = new.lengths
            old.slots[...] = new.slots


class ReplaysPaddingToBlockOne(Recording):
    """A replay keeps its padding in block 1."""

    class Graph(TapeGraph):
        def take(self, old: Metadata, new: Metadata) -> None:
            super().take(old, new)
            old.slots[new.slots < new.block_size] += new.block_size


class ReplaysFirstGroup(Recording):
    """Every group of layers is replayed with the first one's numbers."""

    class Graph(TapeGraph):
        def replay(self, metadata: Sequence[Metadata]) -> None:
            super().replay([metadata[0]] * len(metadata))


class UntypedCapture(Recording):
    """What cannot be recorded is a RuntimeError."""

    def listen(self, recorder: Recorder, compute: Callable[[], None]) -> None:
        try:
            super().listen(recorder, compute)
        except Unsupported as error:
            raise RuntimeError(str(error)) from error
