"""Making cases that are the same for every dtype and need nothing but what every backend has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from baseboard_conformance.bench import Bench
from baseboard_conformance.case import Case, Profile

Check = Callable[[Bench], "Mapping[str, float] | None"]


@dataclass(frozen=True, slots=True)
class Promise:
    """A clause of the contract and the check of it."""

    clause: str
    check: Check
    profile: Profile = Profile.SMOKE
    alone: bool = False


@dataclass(frozen=True, slots=True)
class _Quiet:
    """A check that measures nothing."""

    check: Check

    def __call__(self, bench: Bench) -> Mapping[str, float]:
        return self.check(bench) or {}


def promised(oracle: str, promises: Mapping[str, Promise]) -> Iterator[Case]:
    for name, promise in promises.items():
        yield Case(
            id=name,
            title=promise.clause,
            clause=promise.clause,
            oracle=oracle,
            body=_Quiet(promise.check),
            profile=promise.profile,
            alone=promise.alone,
        )
