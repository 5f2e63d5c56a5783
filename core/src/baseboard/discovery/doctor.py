"""The whole picture: what was found, what works, what does not and why, and what ``auto`` would take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from baseboard.contract import API_VERSION, BackendUnavailable
from baseboard.discovery.choose import Choice, choose
from baseboard.discovery.installation import Installation, read_installation
from baseboard.discovery.instruments import InstrumentReport, examine_instruments
from baseboard.discovery.plugins import load_plugins
from baseboard.discovery.probe import BackendReport, device_as_dict, probe


@dataclass(frozen=True, slots=True)
class Report:
    """What ``baseboard backends`` shows."""

    backends: tuple[BackendReport, ...]  #: by name
    choice: Choice | None  #: of ``auto``; None where nothing is available
    why: str  #: one sentence: why this choice, or why none
    instruments: tuple[InstrumentReport, ...]
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; ``chosen`` is null where nothing is available, and ``why`` says why."""
        chosen = self.choice and {"backend": self.choice.backend.name, "device": device_as_dict(self.choice.device)}
        return {
            "contract_version": API_VERSION,
            "backends": [report.as_dict() for report in self.backends],
            "chosen": chosen,
            "why": self.why,
            "instruments": [report.as_dict() for report in self.instruments],
            "warnings": list(self.warnings),
        }


def examine_backends(installation: Installation) -> tuple[BackendReport, ...]:
    """Load and probe every backend. Raises ``BackendUnavailable`` only for a wrong ``BASEBOARD_BACKENDS``."""
    return tuple(probe(record) for record in load_plugins(installation))


def examine(installation: Installation | None = None) -> Report:
    """Examine ``installation``, by default that of this process."""
    here = read_installation() if installation is None else installation
    backends = examine_backends(here)
    instruments = examine_instruments(here)
    choice: Choice | None = None
    try:
        choice = choose(backends)
        why = choice.why
    except BackendUnavailable as error:
        why = str(error)
    return Report(backends, choice, why, instruments, _warnings(here, instruments))


def _warnings(installation: Installation, instruments: tuple[InstrumentReport, ...]) -> tuple[str, ...]:
    broken = (f"instrument {i.name!r} cannot be used: {i.reason}" for i in instruments if i.reason is not None)
    found = {instrument.name for instrument in instruments}
    absent = (f"instrument {n!r} is not installed" for n in installation.active_instruments if n not in found)
    return (*installation.notes, *broken, *absent)
