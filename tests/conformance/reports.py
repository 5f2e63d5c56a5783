"""Reports made of invented results."""

from __future__ import annotations

from baseboard_conformance.case import Profile
from baseboard_conformance.conclusion import conclude
from baseboard_conformance.manifest import load_manifest
from baseboard_conformance.outcome import Outcome, Result
from baseboard_conformance.report.document import Document

MANIFEST = load_manifest("1.0")


def all_pass(profile: Profile = Profile.SMOKE) -> dict[str, Result]:
    """Every required case passes; numeric ones with some error."""
    return {
        case: Result(case, Outcome.PASS, seed=1, duration=0.5, measures={"ratio": 0.25, "row_ratio": 0.5, "nmse": 1e-9})
        for case in MANIFEST.required(profile)
    }


def document(
    results: dict[str, Result], profile: Profile = Profile.SMOKE, dtypes=("float32",), name="chip"
) -> Document:
    conclusion = conclude(list(results.values()), MANIFEST, profile, dtypes)
    return Document.make(
        conclusion,
        list(results.values()),
        {
            "suite": {"name": "baseboard-conformance", "version": "1"},
            "spec": "1.0",
            "manifest": MANIFEST.hash,
            "profile": profile.label,
            "seed": 0,
            "patterns": [],
            "command": ["baseboard-conformance", "run"],
            "started": "2030-01-01T00:00:00+00:00",
            "duration": 12.5,
            "backend": {
                "name": name,
                "distribution": f"baseboard-{name}",
                "version": "1.0",
                "entry_point": f"baseboard_{name}",
                "device": {"name": "Chip <1>", "device_type": "chip", "index": 0, "details": {}},
                "capabilities": {"dtypes": list(dtypes), "block_sizes": [16], "features": []},
            },
            "environment": {
                "python": "3.12",
                "system": "Linux",
                "machine": "x",
                "cpus": 2,
                "libraries": {"torch": "2"},
            },
            "waivers": [],
        },
    )
