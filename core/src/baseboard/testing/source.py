"""The source of a simulated encoder-decoder model: what lies in its cross blocks, and how it shows in the text."""

from __future__ import annotations

from collections.abc import Sequence

from baseboard.testing.model import Slot


def source_slots(source: Sequence[int], namespace: int) -> list[Slot]:
    """What the cross blocks hold of a source: nothing that could be taken for tokens of the text."""
    return [Slot(-2 - token, at, namespace) for at, token in enumerate(source)]


def coloured(namespace: int, source: Sequence[Slot]) -> int:
    """What a decoder marks its slots with that reads ``source`` through its cross table."""
    return namespace + hash(tuple(source)) if source else namespace
