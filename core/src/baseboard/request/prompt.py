"""A prompt that is kept once: in the tokens that begin with it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, cast, overload


class Beginning(Sequence[int]):
    """The first ``length`` of ``tokens``, which only ever grow. Equal to any sequence of the same numbers."""

    __slots__ = ("_length", "_tokens")

    def __init__(self, tokens: array[int], length: int) -> None:
        self._tokens: Final = tokens
        self._length: Final = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[int, ...]: ...
    def __getitem__(self, at: int | slice) -> int | tuple[int, ...]:
        if isinstance(at, slice):
            return tuple(self._tokens[: self._length][at])
        return self._tokens[range(self._length)[at]]

    def __iter__(self) -> Iterator[int]:
        return islice(self._tokens, self._length)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(cast("Sequence[object]", other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Beginning({list(self)})"
