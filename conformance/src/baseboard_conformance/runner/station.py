"""Where cases are done: a worker process, and its successor when a backend took it down."""

from __future__ import annotations

import threading
from collections.abc import Mapping
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
    """One worker process and its successors; a context manager that opens and closes it.

    Of one thread alone, but for :meth:`give_up`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings: Final = settings
        self._lock: Final = threading.Lock()  #: of the two below
        self._worker: WorkerProcess | None = None
        self._given_up = False
        self._failures = 0
        self._reason = ""
        self._facts: Mapping[str, Any] = {}

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the worker said of the backend when it opened it."""
        return self._facts

    def open(self) -> None:
        """Raises ``UnavailableError`` when the backend does not open."""
        with self._lock:
            if self._given_up:
                raise UnavailableError("the run was given up")
            worker = self._worker = WorkerProcess(self._settings.launch)
        try:
            self._facts = worker.open()
        except BaseException:  # Ctrl-C too: no process stays behind
            self.close()
            raise

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
            self.close()
            return replace(failed, message=str(error))
        except WorkerTimeoutError as error:
            self.close()
            return replace(failed, outcome=Outcome.TIMEOUT, message=str(error), duration=timeout)
        if answer["lost"]:
            self.close()
        return result_from_plain(answer["result"])

    def renew(self) -> None:
        """The next case gets a fresh process."""
        self.close()

    def close(self) -> None:
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def give_up(self) -> None:
        """From any thread: the case under way ends now, and no process is started any more."""
        with self._lock:
            self._given_up = True
            if self._worker is not None:
                self._worker.kill()

    def __enter__(self) -> Station:
        self.open()
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
                self.open()
                self._failures = 0
            except UnavailableError as error:
                self._failures, self._reason = self._failures + 1, str(error)
                raise
        assert self._worker is not None, "open() gave a worker"
        return self._worker

    def _evidence(self, case: Case) -> str | None:
        if self._settings.evidence is None:
            return None
        return str(self._settings.evidence / f"{case.id.replace('/', '--')}.npz")
