"""Doing many cases at a few stations."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from baseboard_conformance.case import Case
from baseboard_conformance.exits import UnavailableError
from baseboard_conformance.outcome import Result
from baseboard_conformance.runner.station import Settings, Station

Told = Callable[[Result], None]
_Answers = queue.SimpleQueue["Result | BaseException"]


class Crew:
    """The stations of one run. Whatever ends :meth:`do`, no worker process is left behind."""

    def __init__(self, settings: Settings) -> None:
        self._first: Final = Station(settings)
        self._others: Final = [Station(settings) for _ in range(settings.workers - 1)]
        self._stop: Final = threading.Event()

    def do(self, cases: Sequence[Case], told: Told) -> Mapping[str, Any]:
        """Do all cases; ``told`` is called in this thread with each result. Gives the facts of the backend.

        Cases that others would disturb come last, one by one, each in a fresh process. Raises ``UnavailableError``
        when the backend does not open at all.
        """
        with self._first:
            self._spread([case for case in cases if not case.alone], told)
            for case in (case for case in cases if case.alone):
                self._first.renew()
                self._do_here(case, told)
            return self._first.facts

    def give_up(self) -> None:
        """From any thread: end the cases under way. :meth:`do` returns soon, and tells no more results."""
        self._stop.set()
        for station in (self._first, *self._others):
            station.give_up()

    @property
    def facts(self) -> Mapping[str, Any]:
        """Of the backend: empty before it has been opened."""
        return self._first.facts

    def _do_here(self, case: Case, told: Told) -> None:
        if self._stop.is_set():
            return
        result = self._first.do(case)
        if not self._stop.is_set():
            told(result)

    def _spread(self, cases: Sequence[Case], told: Told) -> None:
        others = self._others[: len(cases) - 1]
        if not others:
            for case in cases:
                self._do_here(case, told)
            return
        todo: queue.SimpleQueue[Case] = queue.SimpleQueue()
        done: _Answers = queue.SimpleQueue()
        for case in cases:
            todo.put(case)
        threads = [threading.Thread(target=self._drain, args=(self._first, todo, done), daemon=True)]
        threads += [threading.Thread(target=self._drain_with, args=(one, todo, done), daemon=True) for one in others]
        for thread in threads:
            thread.start()
        try:
            self._collect(len(cases), done, told)
        except BaseException:  # Ctrl-C too: nobody waits for cases under way
            self.give_up()
            raise
        finally:
            for thread in threads:
                thread.join()

    def _collect(self, count: int, done: _Answers, told: Told) -> None:
        for _ in range(count):
            result = done.get()
            if self._stop.is_set():
                return
            if isinstance(result, BaseException):
                raise result
            told(result)

    def _drain(self, station: Station, todo: queue.SimpleQueue[Case], done: _Answers) -> None:
        try:
            while not self._stop.is_set():
                done.put(station.do(todo.get_nowait()))
            done.put(UnavailableError("the run was given up"))  # wakes whoever waits for a result
        except queue.Empty:
            return
        except BaseException as error:  # told to the thread that waits
            done.put(error)

    def _drain_with(self, station: Station, todo: queue.SimpleQueue[Case], done: _Answers) -> None:
        try:
            with station:
                self._drain(station, todo, done)
        except UnavailableError:
            return  # the device takes no second process: the first one does all
