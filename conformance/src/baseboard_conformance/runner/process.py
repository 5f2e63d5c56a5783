"""One worker process, seen from the parent."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from baseboard_conformance.exits import UnavailableError
from baseboard_conformance.runner.protocol import decode, encode

_KEPT: Final = 65536  # bytes of what the worker printed last


@dataclass(frozen=True, slots=True)
class Launch:
    """How a worker is started."""

    backend: str
    paths: tuple[Path, ...] = ()  #: put before the import path: plugins that are not installed
    threads: int = 1
    open_timeout: float = 180.0
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


class WorkerDiedError(Exception):
    """The process ended before it answered; the message says how, and what it printed last."""


class WorkerTimeoutError(Exception):
    """No answer in time; the process was killed. The message is what it printed last."""


class WorkerProcess:
    """A process that does cases. Open it first; close it, or use it as a context manager."""

    def __init__(self, launch: Launch) -> None:
        self._launch: Final = launch
        path = os.pathsep.join([*map(str, launch.paths), *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {**os.environ, **({"PYTHONPATH": path} if path else {}), **launch.environment}
        self._process: Final = subprocess.Popen(
            [sys.executable, "-m", "baseboard_conformance.runner.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables,
            start_new_session=True,  # so that whatever it started can be ended with it
        )
        self._answers: Final[queue.SimpleQueue[bytes]] = queue.SimpleQueue()
        self._printed: Final = bytearray()
        self._readers: Final = [
            self._follow(self._process.stdout, self._take_answers),
            self._follow(self._process.stderr, self._take_printed),
        ]

    def open(self) -> Mapping[str, Any]:
        """Open the backend; its facts. Raises ``UnavailableError`` with the reason when it does not open."""
        launch = self._launch
        try:
            answer = self.ask({"backend": launch.backend, "threads": launch.threads}, launch.open_timeout)
        except (WorkerDiedError, WorkerTimeoutError) as error:
            self.close()
            raise UnavailableError(f"backend {launch.backend!r} did not open: {error}") from error
        if "unavailable" in answer:
            self.close()
            raise UnavailableError(answer["unavailable"])
        return answer["ready"]

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """The worker's answer. Raises ``WorkerDiedError`` or ``WorkerTimeoutError``; then the process is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(dict(request)).encode())
            self._process.stdin.flush()
        except OSError as error:
            raise self._died() from error
        try:
            line = self._answers.get(timeout=timeout)
        except queue.Empty:
            self.close()
            raise WorkerTimeoutError(f"no answer within {timeout:g} seconds\n{self.tail()}") from None
        if not line:
            raise self._died()
        return decode(line.decode())

    def tail(self) -> str:
        """What the worker printed last."""
        return bytes(self._printed).decode(errors="replace")[-3000:]

    def close(self) -> None:
        """End the process and everything it started. Calling it twice is harmless."""
        self.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join(timeout=5)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def kill(self) -> None:
        """From any thread: whoever waits for an answer hears that the worker died."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _died(self) -> WorkerDiedError:
        code = self._process.wait()
        for reader in self._readers:
            reader.join(timeout=5)
        self.close()
        how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        return WorkerDiedError(f"the worker process {how}\n{self.tail()}")

    def _follow(self, stream: IO[bytes] | None, take: Any) -> threading.Thread:
        thread = threading.Thread(target=take, args=(stream,), daemon=True)
        thread.start()
        return thread

    def _take_answers(self, stream: IO[bytes]) -> None:
        with suppress(ValueError, OSError):  # closed under our feet
            for line in stream:
                self._answers.put(line)
        self._answers.put(b"")

    def _take_printed(self, stream: IO[bytes]) -> None:
        with suppress(ValueError, OSError):
            while piece := os.read(stream.fileno(), 4096):
                # A traceback comes in pieces of a few bytes: what is kept is counted in bytes.
                self._printed.extend(piece)
                del self._printed[:-_KEPT]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
