"""The one command that does a failed case again."""

from __future__ import annotations

import shlex

from baseboard_conformance.outcome import Result
from baseboard_conformance.report.document import Document


def replay_command(document: Document, result: Result) -> str:
    plain = document.plain
    backend = plain["backend"]["name"]
    command = ["baseboard-conformance", "replay", result.case, "--backend", backend, "--seed", str(plain["seed"])]
    return shlex.join(command)
