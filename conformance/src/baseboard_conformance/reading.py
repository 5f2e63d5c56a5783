"""What users write for a profile, a seed and such, read: by the command line, and by pytest without need of typer."""

from __future__ import annotations

import secrets

from baseboard_conformance.case import Profile
from baseboard_conformance.exits import Allowance, UsageError


def read_profile(text: str) -> Profile:
    """Raises ``UsageError``."""
    known = {profile.label: profile for profile in Profile}
    if text not in known:
        raise UsageError(f"profile {text!r} is unknown; known are {', '.join(known)}")
    return known[text]


def read_allowance(text: str) -> Allowance:
    """Raises ``UsageError``."""
    known = {allowance.value: allowance for allowance in Allowance}
    if text not in known:
        raise UsageError(f"allowance {text!r} is unknown; known is {' or '.join(filter(None, known))}")
    return known[text]


def read_seed(text: str) -> int:
    """Raises ``UsageError``."""
    if text == "random":
        return secrets.randbelow(1 << 31)
    if not text.isdecimal():
        raise UsageError(f"seed {text!r} is neither a number from 0 nor random")
    return int(text)
