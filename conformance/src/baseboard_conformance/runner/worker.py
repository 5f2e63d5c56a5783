"""The worker process: opens the backend once, does one case after the other, and answers on a stream of its own.

What a backend prints goes where errors go; what it reads from standard input is nothing. When the parent is gone, so
is this process, whatever the backend is doing.
"""

from __future__ import annotations

import faulthandler
import os
import queue
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from baseboard.contract import BaseboardError
from baseboard.discovery import Backend, examine_backends, open_backend, read_installation
from baseboard_conformance.bench import Bench
from baseboard_conformance.cases import all_cases
from baseboard_conformance.evidence import save
from baseboard_conformance.execute import Done, execute
from baseboard_conformance.inspecting import source_of
from baseboard_conformance.outcome import Result
from baseboard_conformance.runner.protocol import decode, encode, result_to_plain


def main() -> None:
    stream, answers = _take_streams()
    faulthandler.enable()
    requests = _follow(stream)
    opening = requests.get()
    try:
        examine_backends(read_installation())  # before torch is imported: a plugin may know why that would fail
        _limit_threads(opening["threads"])
        backend = open_backend(opening["backend"])
        answers.write(encode({"ready": _facts(backend, opening["backend"])}))
    except BaseException as error:
        words = str(error) if isinstance(error, BaseboardError) else f"{type(error).__name__}: {error}"
        answers.write(encode({"unavailable": words}))
        answers.flush()
        os._exit(0)  # a thread is reading: an orderly end would wait for it
    answers.flush()
    cases = all_cases()
    while True:
        request = requests.get()
        case = cases[request["case"]]
        # Shortly before the parent loses patience, say where the time went.
        faulthandler.dump_traceback_later(0.9 * request["timeout"])
        done = execute(case, Bench(backend, opening["backend"], request["seed"], request["shrinking"]))
        faulthandler.cancel_dump_traceback_later()
        origin = {"case": case.id, "seed": request["seed"], "backend": opening["backend"]}
        result = _with_evidence(done, request["evidence"], origin)
        answers.write(encode({"result": result_to_plain(result), "lost": done.lost}))
        answers.flush()


def _follow(stream: IO[str]) -> queue.SimpleQueue[dict[str, Any]]:
    """The parent's requests as they come; the end of the stream is the end of this process."""
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        for line in stream:
            requests.put(decode(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return requests


def _with_evidence(done: Done, path: str | None, origin: dict[str, Any]) -> Result:
    """The result, its inputs saved; the message says so where that cannot be done."""
    if not done.evidence or path is None:
        return done.result
    try:
        save(Path(path), done.evidence, origin)
    except OSError as error:
        Path(path).unlink(missing_ok=True)
        return replace(done.result, message=f"{done.result.message}\n(its inputs cannot be saved: {error})")
    return replace(done.result, evidence=path)


def _take_streams() -> tuple[IO[str], IO[str]]:
    """Standard input and output for the protocol alone; everybody else gets nothing and standard error."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdout.flush()
    os.dup2(2, 1)
    return requests, answers


def _limit_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _facts(backend: Backend, name: str) -> dict[str, Any]:
    """What the report says of the backend and of where it ran."""
    import numpy as np
    import torch

    source = source_of(name)
    device = asdict(backend.device)
    can = asdict(backend.capabilities)
    can["features"] = sorted(can["features"])
    return {
        "backend": {
            "name": backend.name,
            "distribution": source.distribution,
            "version": source.version,
            "entry_point": source.value,
            "device": {**device, "details": {str(k): str(v) for k, v in device["details"].items()}},
            "capabilities": can,
        },
        "libraries": {"torch": torch.__version__, "numpy": np.__version__},
    }


if __name__ == "__main__":
    main()
