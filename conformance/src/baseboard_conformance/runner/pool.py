"""Doing many cases in few worker processes, each respawned when its backend took it down."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from baseboard_conformance.case import Case, case_seed
from baseboard_conformance.exits import UnavailableError
from baseboard_conformance.outcome import Outcome, Result
from baseboard_conformance.runner.process import Launch, WorkerDiedError, WorkerProcess, WorkerTimeoutError
from baseboard_conformance.runner.protocol import result_from_plain

#: After this many times in a row that it does not open again, a backend is given up.
_REOPENINGS: Final = 2


@dataclass(frozen=True, slots=True)
class Settings:
    """How cases are done."""

    launch: Launch
    seed: int = 0
    workers: int = 1
    timeout: float | None = None  #: seconds for each case; None: the case's own
    evidence: Path | None = None  #: folder for the inputs of failures
    shrinking: int = 40  #: attempts to make a failing problem smaller


class Station:
    """One worker process and its successors. Not thread-safe."""

    def __init__(self, settings: Settings) -> None:
        """Raises ``UnavailableError`` when the backend does not open."""
        self._settings: Final = settings
        self._worker: WorkerProcess | None = WorkerProcess(settings.launch)
        self._failures = 0
        self._reason = ""
        self.facts: Final[Mapping[str, Any]] = self._worker.facts

    def do(self, case: Case) -> Result:
        """The case's result, whatever happens to the process."""
        return self.do_seeded(case, self._settings.seed)

    def do_seeded(self, case: Case, run_seed: int) -> Result:
        """As :meth:`do`, in a run of another seed."""
        seed = case_seed(case.id, run_seed)
        failed = Result(case.id, Outcome.CRASH, seed=seed)
        try:
            worker = self._ready()
        except UnavailableError as error:
            return replace(failed, message=f"after an earlier case the backend does not open again: {error}")
        timeout = self._settings.timeout or case.timeout
        request = {
            "case": case.id,
            "seed": seed,
            "timeout": timeout,
            "evidence": self._evidence(case),
            "shrinking": self._settings.shrinking,
        }
        try:
            answer = worker.ask(request, timeout)
        except WorkerDiedError as error:
            self._worker = None
            return replace(failed, message=str(error))
        except WorkerTimeoutError as error:
            self._worker = None
            return replace(failed, outcome=Outcome.TIMEOUT, message=str(error), duration=timeout)
        if answer["lost"]:
            self.close()
        return result_from_plain(answer["result"])

    def renew(self) -> None:
        """The next case gets a fresh process."""
        self.close()

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __enter__(self) -> Station:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ready(self) -> WorkerProcess:
        if self._worker is None:
            if self._failures >= _REOPENINGS:
                raise UnavailableError(self._reason)
            try:
                self._worker = WorkerProcess(self._settings.launch)
                self._failures = 0
            except UnavailableError as error:
                self._failures, self._reason = self._failures + 1, str(error)
                raise
        return self._worker

    def _evidence(self, case: Case) -> str | None:
        if self._settings.evidence is None:
            return None
        return str(self._settings.evidence / f"{case.id.replace('/', '--')}.npz")


def run_cases(cases: Sequence[Case], settings: Settings, told: Callable[[Result], None]) -> Mapping[str, Any]:
    """Do all cases; ``told`` is called in this thread with each result. Gives the facts of the backend.

    Cases that others would disturb come last, one by one, each in a fresh process. Raises ``UnavailableError`` when
    the backend does not open at all.
    """
    together = [case for case in cases if not case.alone]
    with Station(settings) as first:
        _spread(together, settings, first, told)
        for case in (case for case in cases if case.alone):
            first.renew()
            told(first.do(case))
        return first.facts


def _spread(cases: Sequence[Case], settings: Settings, first: Station, told: Callable[[Result], None]) -> None:
    if settings.workers <= 1 or len(cases) < 2:
        for case in cases:
            told(first.do(case))
        return
    todo: queue.SimpleQueue[Case] = queue.SimpleQueue()
    done: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()
    for case in cases:
        todo.put(case)
    stop = threading.Event()
    extra = range(min(settings.workers, len(cases)) - 1)
    threads = [threading.Thread(target=_drain, args=(todo, done, stop, first), daemon=True)]
    threads += [threading.Thread(target=_drain_new, args=(todo, done, stop, settings), daemon=True) for _ in extra]
    for thread in threads:
        thread.start()
    try:
        for _ in cases:
            result = done.get()
            if isinstance(result, BaseException):
                raise result
            told(result)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _drain(
    todo: queue.SimpleQueue[Case], done: queue.SimpleQueue[Any], stop: threading.Event, station: Station
) -> None:
    try:
        while not stop.is_set():
            done.put(station.do(todo.get_nowait()))
    except queue.Empty:
        return
    except BaseException as error:  # told to the thread that waits
        done.put(error)


def _drain_new(
    todo: queue.SimpleQueue[Case], done: queue.SimpleQueue[Any], stop: threading.Event, settings: Settings
) -> None:
    try:
        with Station(settings) as station:
            _drain(todo, done, stop, station)
    except UnavailableError:
        return  # the device takes no second process: the first one does all
