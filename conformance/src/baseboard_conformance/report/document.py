"""The report as data: versioned, canonical, and open to recomputation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from baseboard_conformance.case import Profile
from baseboard_conformance.conclusion import Conclusion, conclude
from baseboard_conformance.exits import ExitCode, UsageError
from baseboard_conformance.manifest import canonical, load_manifest
from baseboard_conformance.outcome import Outcome, Result
from baseboard_conformance.outside import as_table
from baseboard_conformance.runner.protocol import result_from_plain, result_to_plain

SCHEMA: Final = 1
KIND: Final = "baseboard-conformance-report"


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """``plain`` is what ``report.json`` holds; it is never changed."""

    plain: Mapping[str, Any]

    @classmethod
    def make(cls, conclusion: Conclusion, results: Sequence[Result], facts: Mapping[str, Any]) -> Document:
        """``facts`` are all other top-level entries."""
        plain: dict[str, Any] = {
            **facts,
            "schema": SCHEMA,
            "kind": KIND,
            "results": [result_to_plain(r) for r in sorted(results, key=lambda r: r.case)],
            "verdict": _verdict(conclusion),
        }
        return cls({**plain, "digest": digest(plain)})

    @classmethod
    def read(cls, path: Path) -> Document:
        """Raises ``UsageError`` for what is no report of a schema that this suite knows."""
        try:
            plain: object = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read as a report: {error}") from error
        table = as_table(plain)
        if table is None or table.get("kind") != KIND:
            raise UsageError(f"{path} is no report of this suite")
        schema = table.get("schema")
        if schema != SCHEMA:
            raise UsageError(
                f"{path} has schema {schema}; this suite reads schema {SCHEMA}: upgrade baseboard-conformance"
            )
        return cls(table)

    @property
    def results(self) -> list[Result]:
        return [result_from_plain(dict(plain)) for plain in self.plain["results"]]

    @property
    def code(self) -> ExitCode:
        return ExitCode(self.plain["verdict"]["code"])

    @property
    def interrupted(self) -> bool:
        """Whether somebody ended the run before all cases were done."""
        return bool(self.plain.get("interrupted"))

    @property
    def asked(self) -> str:
        """The backend as the user asked for it, a device or level behind the colon."""
        backend = self.plain["backend"]
        return str(backend.get("asked", backend["name"]))

    @property
    def sentence(self) -> str:
        return str(self.plain["verdict"]["sentence"])

    @property
    def lead(self) -> str:
        """The verdict's sentence as it opens a page."""
        sentence = f"{self.sentence[0].upper()}{self.sentence[1:]}."
        return f"The run was interrupted. {sentence}" if self.interrupted else sentence

    def text(self) -> str:
        """Canonical: equal reports are equal files."""
        return json.dumps(self.plain, sort_keys=True, indent=1, allow_nan=False) + "\n"


def digest(plain: Mapping[str, Any]) -> str:
    """Of everything but the digest itself. It shows a hand's edit, it is no signature."""
    return hashlib.sha256(canonical({k: v for k, v in plain.items() if k != "digest"}).encode()).hexdigest()


def problems(document: Document) -> list[str]:
    """What is wrong with a report: edited, against another manifest, or a verdict that does not follow."""
    plain = document.plain
    found: list[str] = []
    if plain.get("digest") != digest(plain):
        found.append("the digest does not fit the content: the report was changed after it was written")
    manifest = load_manifest(plain["spec"])
    if plain["manifest"] != manifest.hash:
        found.append(
            f"it was made with manifest {plain['manifest']}; that of contract {manifest.spec} is {manifest.hash}"
        )
    results = document.results
    cases = [result.case for result in results]
    if len(set(cases)) != len(cases):
        found.append("a case is listed twice")
    too_wrong = [r.case for r in results if r.outcome is Outcome.PASS and _worst(r) > 1]
    if too_wrong:
        found.append(f"passed with an error above what is allowed: {', '.join(too_wrong[:5])}")
    profile = Profile[plain["profile"].upper()]
    again = conclude(results, manifest, profile, plain["backend"]["capabilities"]["dtypes"])
    if _verdict(again) != plain["verdict"]:
        found.append(
            f"the verdict does not follow from the results: it says {plain['verdict']['word']}, right is {again.word}"
        )
    return found


def _verdict(conclusion: Conclusion) -> dict[str, Any]:
    return {
        "code": int(conclusion.code),
        "word": conclusion.word,
        "sentence": conclusion.sentence,
        "counts": dict(conclusion.counts),
        "num_required": conclusion.num_required,
        "num_provisional": conclusion.num_provisional,
    }


def _worst(result: Result) -> float:
    return max(result.measures.get("ratio", 0.0), result.measures.get("row_ratio", 0.0))
