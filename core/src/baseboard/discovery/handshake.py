"""Whether a plugin and this core speak the same contract."""

from __future__ import annotations

import re
from dataclasses import dataclass

from baseboard.contract import ContractError


@dataclass(frozen=True, slots=True)
class ContractVersion:
    """``major.minor``. A core takes plugins written for its own minor and for the one before it."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: object, hook: str = "contract_version") -> ContractVersion:
        """Raises ``ContractError`` for anything but text such as ``"1.0"``."""
        match = re.fullmatch(r"(\d+)\.(\d+)", text, re.ASCII) if isinstance(text, str) else None
        if match is None:
            raise ContractError(f"{hook}() gave {text!r}, not text such as '1.0'")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def accepted(self) -> tuple[ContractVersion, ...]:
        """Versions a core of this version takes, newest first."""
        minors = (self.minor, self.minor - 1) if self.minor else (0,)
        return tuple(ContractVersion(self.major, minor) for minor in minors)


def check_version(plugin: ContractVersion, core: ContractVersion, distribution: str, noun: str = "contract") -> None:
    """Raises ``ContractError`` that names both sides and which of them to upgrade."""
    if plugin in core.accepted:
        return
    newer = (plugin.major, plugin.minor) > (core.major, core.minor)
    accepted = " and ".join(str(version) for version in core.accepted)
    raise ContractError(
        f"{distribution} is written for {noun} {plugin}, this core has {noun} {core} and accepts {accepted}: "
        f"upgrade {'baseboard' if newer else distribution}"
    )
