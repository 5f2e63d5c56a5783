"""A step of the simulated device while its rows are computed, in whatever order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from baseboard.contract.media import ContentId
from baseboard.contract.plan import RowLogprobs, RowState, StepPlan, StepResult

if TYPE_CHECKING:
    from baseboard.testing.device import SimulatedDevice


@dataclass(slots=True)
class Row:
    """What the device holds of a request."""

    state: RowState
    tokens: list[int]
    tables: list[list[int]]
    spoilt: bool = False  #: a token once saw a slot that held something else than it should


@dataclass(frozen=True, slots=True)
class Job:
    """One row of a plan."""

    at: int
    row: Row
    row_id: str
    start: int
    count: int
    samples: int
    drafts: tuple[int, ...]
    masks: tuple[frozenset[int], ...]
    pools: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """What could not be had from outside."""

    rows: Mapping[int, int]  #: by row, how many leading tokens are good
    encodings: tuple[ContentId, ...]


class StepWork:
    """A step under way: its plan has been taken in, some of its rows may not have been computed yet."""

    def __init__(self, device: SimulatedDevice, plan: StepPlan, jobs: list[Job], lost: Lost) -> None:
        self._device: Final = device
        self._plan: Final = plan
        self.jobs: Final = jobs  #: still to be computed
        self._lost: Final = lost
        self._sampled: Final[list[tuple[int, ...]]] = [()] * len(plan.ids)
        self._drafts: Final[dict[int, tuple[int, ...]]] = {}
        self._pooled: Final[dict[int, int]] = {}
        self._num_nans: Final[dict[int, int]] = {}
        self._logprobs: Final[dict[int, RowLogprobs]] = {}

    @property
    def open_rows(self) -> list[str]:
        return [job.row_id for job in self.jobs]

    def compute(self, job: Job) -> None:
        device = self._device
        self.jobs.remove(job)
        self._sampled[job.at] = device.compute(job)
        if job.pools:
            self._pooled[job.at] = device.pool(job)
        if job.row.state.params.logprobs is not None or job.row.state.params.prompt_logprobs is not None:
            self._logprobs[job.at] = device.logprobs(job, self._sampled[job.at])
        if job.samples:
            facts = device.facts[job.row_id]
            if facts.num_nans and (count := facts.num_nans.pop(0)):
                self._num_nans[job.at] = count
        if device.num_drafts and job.samples == 1:
            self._drafts[job.at] = device.guess(job)

    def result(self) -> StepResult:
        """Compute what is left, first row first."""
        for job in list(self.jobs):
            self.compute(job)
        return StepResult(
            self._plan.step, tuple(self._sampled), lost=self._lost.rows, encoder_lost=self._lost.encodings,
            drafts=self._drafts, pooled=self._pooled, num_nans=self._num_nans, logprobs=self._logprobs,
        )  # fmt: skip
