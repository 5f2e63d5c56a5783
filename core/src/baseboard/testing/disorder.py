"""A device that does not run its steps in order: whatever need not wait for an earlier step overtakes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from baseboard.contract.plan import PendingStep, StepPlan, StepResult
from baseboard.testing.device import InjectedFailure, SimulatedDevice
from baseboard.testing.work import StepWork


@dataclass(frozen=True, slots=True)
class _Overtaken:
    disorder: Disorder
    work: StepWork

    def result(self) -> StepResult:
        return self.disorder.result_of(self.work)


@dataclass(frozen=True, slots=True)
class _Failed:
    failure: InjectedFailure

    def result(self) -> StepResult:
        raise self.failure


def _waits(plan: StepPlan) -> bool:
    """Whether a plan does something that comes after everything planned before."""
    moves = plan.kv_ops or plan.zeroes or plan.loads
    encodes = plan.encodes or plan.encoder_loads or plan.encoder_drops or any(state.source for state in plan.entered)
    return bool(moves or encodes)


class Disorder:
    """An executor over a simulated device. Computes nothing before a result is asked for, then the latest step first.

    Rows of one request keep their order, for each needs the token before it. Block moves, wiping, loading and all that
    an encoder does come after everything that was planned before them.
    """

    def __init__(self, device: SimulatedDevice) -> None:
        self._device: Final = device
        self._under_way: Final[list[StepWork]] = []

    def submit(self, plan: StepPlan) -> PendingStep:
        if _waits(plan) or self._device.about_to_fail:
            for work in self._under_way:
                work.result()
        try:
            work = self._device.begin(plan)
        except InjectedFailure as failure:
            return _Failed(failure)
        self._under_way.append(work)
        return _Overtaken(self, work)

    def result_of(self, work: StepWork) -> StepResult:
        """Results are asked for in the order of plans; those behind overtake where they can."""
        for at in range(len(self._under_way) - 1, 0, -1):
            before = [row_id for earlier in self._under_way[:at] for row_id in earlier.open_rows]
            for job in list(self._under_way[at].jobs):
                if job.row_id not in before:
                    self._under_way[at].compute(job)
        self._under_way.remove(work)
        return work.result()

    def close(self) -> None:
        self._under_way.clear()
        self._device.close()
