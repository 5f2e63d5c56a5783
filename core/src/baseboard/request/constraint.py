"""What a grammar engine gives for one request: which tokens may come next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol


class TokenConstraint(Protocol):
    """Advances with accepted tokens only, so a rejected draft or a preemption never has to be taken back."""

    def allowed(self, ahead: Sequence[int]) -> Collection[int]:
        """Token ids that may follow the accepted tokens and then ``ahead``; empty: the text must end there."""
        ...

    def advance(self, token: int) -> None:
        """One more token was accepted."""
        ...

    def copy(self) -> TokenConstraint:
        """The same state, for a sample that goes its own way."""
        ...
