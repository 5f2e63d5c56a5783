"""How a run ends: its exit code, and the errors that lead straight to one."""

from __future__ import annotations

from enum import Enum, IntEnum


class ExitCode(IntEnum):
    """Codes of the command line. 0 to 5 agree in spirit with pytest's."""

    CONFORMANT = 0
    NOT_CONFORMANT = 1
    INTERRUPTED = 2
    INTERNAL_ERROR = 3  #: a fault of the suite or of the machine, not of the backend
    USAGE = 4  #: unknown backend, case, profile; malformed waivers
    NOTHING_RAN = 5
    PARTIAL = 10  #: passes only with waivers, or not every required case ran
    STALE_WAIVER = 11  #: a waiver has expired, matches nothing, or waives what passes
    BACKEND_UNAVAILABLE = 12  #: installed, but it does not load or has no device
    SPEC_UNSUPPORTED = 13  #: no manifest for the contract version that was asked for


class Allowance(Enum):
    """What a run may lack and still end with 0."""

    NOTHING = ""
    PARTIAL = "partial"  #: cases that are waived or left out


class SuiteError(Exception):
    """Something that ends the run before a verdict; ``code`` is how the process exits."""

    code: ExitCode = ExitCode.INTERNAL_ERROR


class UsageError(SuiteError):
    """The user asked for something that does not exist or cannot be read."""

    code = ExitCode.USAGE


class UnavailableError(SuiteError):
    """The backend cannot be opened here."""

    code = ExitCode.BACKEND_UNAVAILABLE


class SpecError(SuiteError):
    """There is no manifest for this version of the contract."""

    code = ExitCode.SPEC_UNSUPPORTED


class StaleWaiverError(SuiteError):
    """A waiver that waives nothing, or whose time is over."""

    code = ExitCode.STALE_WAIVER


class InterruptedRunError(SuiteError):
    """Somebody pressed Ctrl-C."""

    code = ExitCode.INTERRUPTED
