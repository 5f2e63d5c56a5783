"""What came of one case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from numpy.typing import NDArray


class Outcome(Enum):
    """There is no skip: what does not run says why in one of these words."""

    PASS = "PASS"
    FAIL = "FAIL"  #: the backend did it wrong
    CRASH = "CRASH"  #: the worker process died, or the backend tried to end it
    TIMEOUT = "TIMEOUT"  #: the worker process was killed after the case's time
    NOT_CLAIMED = "NOT_CLAIMED"  #: not declared, and refused as it must be where the contract has a way to refuse
    WAIVED = "WAIVED"  #: failed, and a waiver says why that is known
    XPASS = "XPASS"  #: passed although a waiver says that it fails
    ERROR = "ERROR"  #: the suite itself failed

    @property
    def bad(self) -> bool:
        """Whether the backend is to blame."""
        return self in {Outcome.FAIL, Outcome.CRASH, Outcome.TIMEOUT}

    @property
    def executed(self) -> bool:
        return self is not Outcome.NOT_CLAIMED


@dataclass(frozen=True, slots=True)
class Result:
    """One case's outcome and what was measured."""

    case: str
    outcome: Outcome
    message: str = ""  #: for FAIL the whole story; for NOT_CLAIMED what is not declared
    seed: int = 0  #: the case's own, made of its id and the run's seed
    duration: float = 0.0  #: seconds
    measures: Mapping[str, float] = field(default_factory=dict[str, float])  #: ``ratio``, ``row_ratio``, ...
    evidence: str | None = None  #: file with the inputs, relative to the report
    waiver: str | None = None  #: the waiver's reason


class CheckFailedError(Exception):
    """Raised by a case's body: the backend broke the contract. The message says where, what, and what is right.

    ``evidence`` are arrays to save beside the report, ``measures`` what was measured until then.
    """

    def __init__(
        self,
        message: str,
        evidence: Mapping[str, NDArray[Any]] | None = None,
        measures: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(message)
        self.evidence: Mapping[str, NDArray[Any]] = evidence or {}
        self.measures: Mapping[str, float] = measures or {}
