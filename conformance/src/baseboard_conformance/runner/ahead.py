"""A crew that works on a thread of its own; each result is kept until somebody asks for it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from baseboard_conformance.case import Case
from baseboard_conformance.exits import SuiteError
from baseboard_conformance.outcome import Result
from baseboard_conformance.runner.crew import Crew
from baseboard_conformance.runner.station import Settings


class Ahead:
    """Begins with the first of ``cases`` at once. Give it up, whatever happens."""

    def __init__(self, settings: Settings, cases: Sequence[Case]) -> None:
        self._crew: Final = Crew(settings)
        self._changed: Final = threading.Condition()
        self._results: Final[dict[str, Result]] = {}
        self._error: BaseException | None = None
        self._thread: Final = threading.Thread(target=self._work, args=(cases,), daemon=True)
        self._thread.start()

    @property
    def facts(self) -> Mapping[str, Any]:
        """Of the backend: empty before it has been opened."""
        return self._crew.facts

    def result(self, case: Case) -> Result:
        """Waits for it. Raises what ended the crew before it came to the case."""
        with self._changed:
            self._changed.wait_for(lambda: case.id in self._results or self._error is not None)
        if case.id in self._results:
            return self._results[case.id]
        assert self._error is not None, "that is what was waited for"
        raise self._error

    def give_up(self) -> None:
        """End the cases under way, and all processes. Calling it twice is harmless."""
        self._crew.give_up()
        self._thread.join()

    def _work(self, cases: Sequence[Case]) -> None:
        error: BaseException = SuiteError("this case was not among those that were to be done")
        try:
            self._crew.do(cases, self._take)
        except BaseException as reason:  # told to whoever asks for a result
            error = reason
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _take(self, result: Result) -> None:
        with self._changed:
            self._results[result.case] = result
            self._changed.notify_all()
