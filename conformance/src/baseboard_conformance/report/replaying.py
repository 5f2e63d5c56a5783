"""The one command that does a failed case again."""

from __future__ import annotations

import shlex


def replay_command(case: str, backend: str, run_seed: int) -> str:
    """``backend`` as the user asked for it."""
    return shlex.join(["baseboard-conformance", "replay", case, "--backend", backend, "--seed", str(run_seed)])
