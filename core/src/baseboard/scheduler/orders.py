"""Order: who is served first in a step."""

from __future__ import annotations

from typing import Protocol


class Turn(Protocol):
    """The three kinds of requests, each served best rank first until the budget is spent."""

    @property
    def preempted(self) -> bool:
        """Whether blocks were taken from somebody for this step."""
        ...

    @property
    def num_rows(self) -> int: ...
    @property
    def any_swapped(self) -> bool:
        """Whether anybody who is not running holds keys and values, in the host pool or from outside."""
        ...

    def serve_running(self) -> None: ...
    def serve_swapped(self) -> None: ...
    def serve_waiting(self) -> None: ...


class Order(Protocol):
    def serve(self, turn: Turn) -> None: ...


class Continuous:
    """Running requests first, then the swapped, then new ones, all on one budget.

    Blocks that were just taken from one do not go to the next in line, and what lies in the host pool comes back
    before anything new begins.
    """

    def serve(self, turn: Turn) -> None:
        turn.serve_running()
        if turn.preempted:
            return
        turn.serve_swapped()
        if not turn.any_swapped:
            turn.serve_waiting()


class PrefillFirst:
    """New prompts first, and alone: a step that begins one decodes nothing.

    While anything is swapped out no new prompt begins.
    """

    def serve(self, turn: Turn) -> None:
        if not turn.any_swapped and not turn.preempted:
            turn.serve_waiting()
        if turn.num_rows:
            return
        turn.serve_running()
        if not turn.preempted:
            turn.serve_swapped()
