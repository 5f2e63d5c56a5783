"""A case: data, and one function that does it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeAlias

from baseboard_conformance.bench import Bench
from baseboard_conformance.claims import Need
from baseboard_conformance.scenario import Scenario
from baseboard_conformance.verdict import POLICY

#: Does the case: gives what it measured, raises ``CheckFailedError`` when the backend is wrong, and
#: :class:`NotObservable` when this machine cannot show it.
Body: TypeAlias = Callable[[Bench], Mapping[str, float]]


class Profile(IntEnum):
    """Each includes those before it."""

    SMOKE = 1  #: under a minute: before a commit
    CORE = 2  #: every pull request
    FULL = 3  #: a release: only this one can carry a badge

    @property
    def label(self) -> str:
        return self.name.lower()


class NotObservable(Exception):
    """The contract's promise cannot be seen from outside here; the message says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One promise of the contract, in one situation."""

    id: str  #: ``group/variant/...``
    title: str
    clause: str  #: the contract's text
    oracle: str  #: where the right answer comes from
    body: Body
    profile: Profile = Profile.FULL
    need: Need = field(default_factory=Need)
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])  #: what the case is made of
    probe: Scenario | None = None  #: what must be refused where ``need`` is not declared
    tolerance: str = "exact"
    alone: bool = False  #: disturbed by other cases at the same time
    timeout: float = 120.0  #: seconds
    revision: int = 1  #: raised when the case changes what it demands

    @property
    def group(self) -> str:
        return self.id.partition("/")[0]

    @property
    def numeric(self) -> bool:
        """Whether it compares numbers that were drawn from the seed with the oracle's."""
        return self.tolerance == POLICY

    @property
    def hash(self) -> str:
        """Of what the case demands: frozen in the manifest."""
        demand = {
            "id": self.id,
            "profile": self.profile.label,
            "params": dict(self.params),
            "need": _need(self.need),
            "tolerance": self.tolerance,
            "revision": self.revision,
        }
        text = json.dumps(demand, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _need(need: Need) -> list[Any]:
    return [need.dtype, need.kv_dtype, need.block_size, need.head_size, need.ratio, need.seqs, sorted(need.features)]


def case_seed(case_id: str, run_seed: int) -> int:
    """The case's own seed: what runs beside it changes nothing."""
    return int.from_bytes(hashlib.blake2b(f"{run_seed}/{case_id}".encode(), digest_size=6).digest(), "little")
