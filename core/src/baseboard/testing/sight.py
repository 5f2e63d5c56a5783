"""How much of a sequence the simulated model looks at: each of its layer groups at its window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baseboard.testing.model import Slot


@dataclass(frozen=True, slots=True)
class Sight:
    """``windows[g]`` slots, the newest included, are what group ``g`` sees; None: all there are."""

    windows: tuple[int | None, ...] = (None,)

    @property
    def windowed(self) -> bool:
        return any(window is not None for window in self.windows)

    @property
    def whole(self) -> int:
        """The first group that sees everything. Raises ``ValueError`` where all see a window."""
        if None not in self.windows:
            raise ValueError(f"layer_windows={self.windows}: no group sees whole sequences")
        return self.windows.index(None)

    def first(self, group: int, position: int) -> int:
        """Position of the first slot that the token at ``position`` sees."""
        window = self.windows[group]
        return 0 if window is None else max(position - window + 1, 0)

    def slot(self, group: int, token: int, position: int, namespace: int) -> Slot:
        """Content of a slot; no group's is like another's, so that a block of the wrong group is noticed."""
        return Slot(token, position, namespace + group)

    def of(self, tokens: Sequence[int], namespace: int) -> list[Slot]:
        """All that the last of these tokens sees where every slot holds what it should."""
        return self.seen(tokens, len(tokens) - 1, len(tokens), namespace)

    def seen(self, tokens: Sequence[int], position: int, end: int, namespace: int) -> list[Slot]:
        """Of that, for the token at ``position``, what lies before position ``end``."""
        return [
            self.slot(group, tokens[at], at, namespace)
            for group in range(len(self.windows))
            for at in range(self.first(group, position), end)
        ]
