"""The worker process: opens the backend once, does one case after the other, and answers on a stream of its own.

What a backend prints goes where errors go; what it reads from standard input is nothing.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from baseboard.contract import BaseboardError
from baseboard.discovery import Backend, open_backend
from baseboard_conformance.bench import Bench
from baseboard_conformance.cases import all_cases
from baseboard_conformance.evidence import save
from baseboard_conformance.execute import execute
from baseboard_conformance.inspecting import source_of
from baseboard_conformance.runner.protocol import decode, encode, result_to_plain


def main() -> None:
    requests, answers = _take_streams()
    faulthandler.enable()
    opening = decode(requests.readline())
    try:
        _limit_threads(opening["threads"])
        backend = open_backend(opening["backend"])
        answers.write(encode({"ready": _facts(backend, opening["backend"])}))
    except BaseException as error:
        words = str(error) if isinstance(error, BaseboardError) else f"{type(error).__name__}: {error}"
        answers.write(encode({"unavailable": words}))
        answers.flush()
        return
    answers.flush()
    cases = all_cases()
    for line in requests:
        request = decode(line)
        case = cases[request["case"]]
        # Shortly before the parent loses patience, say where the time went.
        faulthandler.dump_traceback_later(0.9 * request["timeout"])
        done = execute(case, Bench(backend, opening["backend"], request["seed"], request["shrinking"]))
        faulthandler.cancel_dump_traceback_later()
        plain = result_to_plain(done.result)
        if done.evidence and request["evidence"]:
            origin = {"case": case.id, "seed": request["seed"], "backend": opening["backend"]}
            save(Path(request["evidence"]), done.evidence, origin)
            plain["evidence"] = request["evidence"]
        answers.write(encode({"result": plain, "lost": done.lost}))
        answers.flush()


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
