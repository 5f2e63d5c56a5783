"""What parent and worker say to each other: one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from baseboard_conformance.outcome import Outcome, Result


def encode(message: dict[str, Any]) -> str:
    """One line. What is no number (NaN) becomes the word for it: canonical JSON has no such numbers."""
    return json.dumps(message, sort_keys=True) + "\n"


def decode(line: str) -> dict[str, Any]:
    return dict(json.loads(line))


def result_to_plain(result: Result) -> dict[str, Any]:
    plain = asdict(result)
    plain["outcome"] = result.outcome.value
    plain["measures"] = {name: float(value) for name, value in result.measures.items()}
    return plain


def result_from_plain(plain: dict[str, Any]) -> Result:
    fields: dict[str, Any] = {**plain, "outcome": Outcome(plain["outcome"])}
    return Result(**fields)
