"""Frozen lists of what a version of the contract demands: case ids and the hash of each demand.

A newer suite runs an older manifest: the ids that it lists, no others. Cases that the manifest of the wanted version
does not list are *provisional*: they are reported and decide nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from baseboard.contract import API_VERSION
from baseboard_conformance.case import Case, Profile
from baseboard_conformance.exits import SpecError, UsageError

#: Errata: cases withdrawn by a patch release because they demand what the contract does not say.
WITHDRAWN: Final[frozenset[str]] = frozenset()
_PROVISIONAL: Final = ("operator.", "graph.")


@dataclass(frozen=True, slots=True)
class Entry:
    """One demand."""

    hash: str
    profile: Profile


@dataclass(frozen=True, slots=True)
class Manifest:
    """What version ``spec`` of the contract demands."""

    spec: str
    entries: Mapping[str, Entry]

    @property
    def hash(self) -> str:
        return hashlib.sha256(canonical(to_plain(self)).encode()).hexdigest()[:16]

    def required(self, profile: Profile) -> frozenset[str]:
        return frozenset(i for i, entry in self.entries.items() if entry.profile <= profile and i not in WITHDRAWN)


def canonical(plain: Any) -> str:
    """One text for equal data."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)


def to_plain(manifest: Manifest) -> dict[str, Any]:
    cases = {i: {"hash": e.hash, "profile": e.profile.label} for i, e in sorted(manifest.entries.items())}
    return {"format": 1, "spec": manifest.spec, "cases": cases}


def from_plain(plain: Any, origin: str) -> Manifest:
    """Raises ``UsageError`` for what is no manifest."""
    try:
        if plain["format"] != 1:
            raise UsageError(
                f"{origin} has format {plain['format']}; this suite reads format 1, a newer one may be needed"
            )
        entries = {i: Entry(str(e["hash"]), Profile[e["profile"].upper()]) for i, e in plain["cases"].items()}
        return Manifest(str(plain["spec"]), entries)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{origin} is no manifest: {type(error).__name__} {error}") from error


def freeze(cases: Mapping[str, Case], spec: str = API_VERSION) -> Manifest:
    """The manifest of the suite's own cases, without those that are still provisional."""
    kept = {i: case for i, case in cases.items() if not i.startswith(_PROVISIONAL)}
    return Manifest(spec, {i: Entry(case.hash, case.profile) for i, case in kept.items()})


def specs() -> list[str]:
    """Versions with a manifest in this suite, oldest first."""
    names = [path.name for path in _folder().iterdir() if path.name.endswith(".json")]
    return sorted((name.removesuffix(".json") for name in names), key=lambda s: tuple(map(int, s.split("."))))


def load_manifest(spec: str | None = None) -> Manifest:
    """The manifest of ``spec``; None or ``latest`` is the newest. Raises ``SpecError``."""
    known = specs()
    wanted = known[-1] if spec in {None, "latest"} else spec
    if wanted not in known:
        raise SpecError(f"there is no manifest for contract {spec}: this suite has {', '.join(known)}")
    text = (_folder() / f"{wanted}.json").read_text(encoding="utf-8")
    return from_plain(json.loads(text), f"manifests/{wanted}.json")


def drifted(manifest: Manifest, cases: Mapping[str, Case]) -> list[str]:
    """Cases of the suite that no longer demand what the manifest froze, or are gone."""
    return [
        i for i, e in manifest.entries.items() if i not in WITHDRAWN and (i not in cases or cases[i].hash != e.hash)
    ]


def _folder() -> Any:
    return resources.files("baseboard_conformance") / "manifests"
