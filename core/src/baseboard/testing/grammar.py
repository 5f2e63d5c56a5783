"""A grammar as a plain function, for tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

#: Outputs so far to the token ids that may follow; empty: the text must end.
Grammar: TypeAlias = Callable[[Sequence[int]], Collection[int]]


class CallableGrammar:
    """A ``TokenConstraint`` that counts how often it advanced."""

    def __init__(self, grammar: Grammar, accepted: Sequence[int] = ()) -> None:
        self._grammar = grammar
        self._accepted = list(accepted)

    @property
    def num_advanced(self) -> int:
        return len(self._accepted)

    def allowed(self, ahead: Sequence[int]) -> Collection[int]:
        return self._grammar([*self._accepted, *ahead])

    def advance(self, token: int) -> None:
        self._accepted.append(token)

    def copy(self) -> CallableGrammar:
        return CallableGrammar(self._grammar, self._accepted)
