"""A step as another party's order may make it."""

from __future__ import annotations

from typing import Final

from baseboard.contract.errors import ContractError
from baseboard.scheduler.orders import Turn


class GuardedTurn:
    """Lets each kind be served once, and only where that keeps a plan whole.

    A request that has a row already must not get a second one, so the running come before anybody who is let in.
    Blocks that were just taken from one must not go to the next in line.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn: Final = turn
        self._served: Final[set[str]] = set()

    @property
    def preempted(self) -> bool:
        return self._turn.preempted

    @property
    def num_rows(self) -> int:
        return self._turn.num_rows

    @property
    def any_swapped(self) -> bool:
        return self._turn.any_swapped

    def serve_running(self) -> None:
        self._once("running")
        if self._turn.num_rows:
            raise ContractError("it served the running after others in the same step; they come first, or next step")
        self._turn.serve_running()

    def serve_swapped(self) -> None:
        self._once("swapped")
        self._nobody_robbed("swapped")
        self._turn.serve_swapped()

    def serve_waiting(self) -> None:
        self._once("waiting")
        self._nobody_robbed("waiting")
        self._turn.serve_waiting()

    def _once(self, kind: str) -> None:
        if kind in self._served:
            raise ContractError(f"it served the {kind} twice in one step")
        self._served.add(kind)

    def _nobody_robbed(self, kind: str) -> None:
        if self._turn.preempted:
            raise ContractError(f"it served the {kind} in a step that took blocks from somebody; see Turn.preempted")
