"""``python -m baseboard_conformance.freezing``: write the manifest of this contract version. At a release only."""

from __future__ import annotations

import json
from pathlib import Path

from baseboard_conformance.cases import all_cases
from baseboard_conformance.manifest import freeze, to_plain

if __name__ == "__main__":
    frozen = freeze(all_cases())
    target = Path(__file__).parent / "manifests" / f"{frozen.spec}.json"
    target.write_text(json.dumps(to_plain(frozen), sort_keys=True, indent=0) + "\n", encoding="utf-8")
