"""What roles of other parties did wrong, until the scheduler ends the requests that it touched."""

from __future__ import annotations

from dataclasses import dataclass

from baseboard.request.request import RequestSpec


@dataclass(frozen=True, slots=True)
class Fault:
    """A role failed. ``specs`` are those of the requests it touches; None where it was asked about all in line."""

    specs: tuple[RequestSpec, ...] | None
    reason: str


class Faults:
    """Written by the guards around such roles, emptied by the scheduler after each plan and each result."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def __bool__(self) -> bool:
        return bool(self._faults)

    def add(self, fault: Fault) -> None:
        self._faults.append(fault)

    def take(self) -> tuple[Fault, ...]:
        taken = tuple(self._faults)
        self._faults = []
        return taken
