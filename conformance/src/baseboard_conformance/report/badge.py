"""A badge in the form that shields.io reads."""

from __future__ import annotations

import json

from baseboard_conformance.exits import ExitCode
from baseboard_conformance.report.document import Document

_COLOURS = {ExitCode.CONFORMANT: "brightgreen", ExitCode.PARTIAL: "yellow"}


def badge(document: Document) -> str:
    """Only a full run says *conformant*: the smaller profiles show what they are."""
    plain = document.plain
    counts = plain["verdict"]["counts"]
    held = counts.get("PASS", 0) + counts.get("NOT_CLAIMED", 0)
    words = [f"contract {plain['spec']}", plain["profile"], f"{held}/{plain['verdict']['num_required']}"]
    if counts.get("WAIVED"):
        words.append(f"{counts['WAIVED']} waived")
    conformant = document.code is ExitCode.CONFORMANT and plain["profile"] == "full"
    content = {
        "schemaVersion": 1,
        "label": "baseboard conformant" if conformant else "baseboard",
        "message": " · ".join(words),
        "color": _COLOURS.get(document.code, "red"),
    }
    return json.dumps(content, sort_keys=True, ensure_ascii=False) + "\n"
