"""Which sequences a step holds: lengths on and around the edges of blocks.

A layout is a function of the block size, so that it hits the same edges whatever a backend's blocks are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence of the step: its last ``query_len`` of ``seq_len`` tokens are computed."""

    query_len: int
    seq_len: int
    padding: bool = False  #: a dummy of the null block, as batches are padded with


@dataclass(frozen=True, slots=True)
class Layout:
    """A step's sequences, and how many leading blocks they share. Decodes come first."""

    rows: tuple[Row, ...]
    shared_blocks: int = 0

    @property
    def num_decodes(self) -> int:
        """Leading sequences of one token. A chunk that happens to have one token counts: a backend cannot tell."""
        return next((i for i, row in enumerate(self.rows) if row.query_len != 1), len(self.rows))

    @property
    def mixed(self) -> bool:
        return 0 < self.num_decodes < len(self.rows)


def _decode(b: int) -> Layout:
    return Layout(tuple(Row(1, n) for n in (1, max(1, b - 1), b, b + 1, 2 * b + 3, 4 * b)))


def _prefill(b: int) -> Layout:
    return Layout(tuple(Row(n, n) for n in (2, b, b + 1, 2 * b + 3)))


def _chunked(b: int) -> Layout:
    """Chunks that start and end in the middle of a block, at its edge, and one token before it."""
    return Layout((Row(3, b + 4), Row(b, 2 * b), Row(b + 2, 3 * b + 1), Row(2, 2 * b + 1)))


def _mixed(b: int) -> Layout:
    return Layout((Row(1, 2 * b + 1), Row(1, b), Row(b + 3, b + 3), Row(5, 2 * b + 5), Row(2, 2)))


def _single_token_chunk(b: int) -> Layout:
    """A last chunk of one token between longer ones is no decode."""
    return Layout((Row(1, b + 1), Row(3, 3), Row(1, 2 * b + 1), Row(b + 1, b + 1)))


def _shared(b: int) -> Layout:
    return Layout((Row(1, 2 * b + 1), Row(1, 3 * b), Row(1, 2 * b + 2)), shared_blocks=2)


def _padded(b: int) -> Layout:
    dummies = tuple(Row(1, 1, padding=True) for _ in range(4))
    return Layout((Row(1, b + 1), Row(1, 3), *dummies))


def _long(b: int) -> Layout:
    """More keys than any running sum in the model's dtype survives."""
    return Layout((Row(1, 8192 + b // 2 + 1),))


def _long_prefill(b: int) -> Layout:
    return Layout((Row(7, 1024 + b // 2 + 3),))


def _many(b: int) -> Layout:
    return Layout(tuple(Row(1, 1 + (7 * i) % (3 * b)) for i in range(64)))


LAYOUTS: Final[Mapping[str, Callable[[int], Layout]]] = {
    "decode": _decode,
    "prefill": _prefill,
    "chunked": _chunked,
    "mixed": _mixed,
    "single_token_chunk": _single_token_chunk,
    "shared_prefix": _shared,
    "padded": _padded,
    "long_decode": _long,
    "long_chunk": _long_prefill,
    "many": _many,
}

MIXED: Final = frozenset(name for name, make in LAYOUTS.items() if make(16).mixed)


def fitted(layout: Layout, max_seqs: int | None) -> Layout:
    """The part of the layout that fits into one step."""
    return layout if max_seqs is None else Layout(layout.rows[:max_seqs], layout.shared_blocks)
