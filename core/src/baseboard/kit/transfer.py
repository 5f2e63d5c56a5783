"""The transfer of a backend whose swaps are done when the call returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FinishedTransfer:
    """A :class:`baseboard.contract.Transfer` that has landed."""

    nbytes: int

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """Return at once: there is nothing to wait for."""

    def wait_on_stream(self) -> None:
        """Return at once: work enqueued from now on sees the result."""
