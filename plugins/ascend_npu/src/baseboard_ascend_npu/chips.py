"""Chips by the name that CANN gives them, and which of them the operators are documented for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from baseboard_ascend_npu.limits import SUPPORTED_FAMILIES


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip as ``aclrtGetSocName`` names it, ``"Ascend910B2"``."""

    soc: str
    family: str  #: as the operators' documents call it: ``"Atlas A2"``; the name itself where it is not known

    @property
    def obstacle(self) -> str | None:
        """Why the backend does not run on it; None where it does."""
        if self.family in SUPPORTED_FAMILIES:
            return None
        return (
            f"{self.soc} ({self.family}) is not supported: the paged attention operators are documented for "
            f"{' and '.join(SUPPORTED_FAMILIES)} only"
        )


#: The first that matches; digits after 910B and 910_93 tell speed grades.
_FAMILIES: Final = (
    (r"Ascend910B\d", "Atlas A2"),
    (r"Ascend910_93\d\d", "Atlas A3"),
    (r"Ascend310P\d?", "Atlas 300I inference series"),
    (r"Ascend910[A-Z]?$|Ascend910Pro[AB]$", "Atlas 300T training series"),
    (r"Ascend950", "Atlas A5"),
)


def chip(soc: str) -> Chip:
    """The chip of that name."""
    return Chip(
        soc, next((family for pattern, family in _FAMILIES if re.match(pattern, soc)), "unknown to this plugin")
    )
