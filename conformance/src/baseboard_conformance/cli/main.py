"""The console script ``baseboard-conformance``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from baseboard_conformance.cli.app import build_app
from baseboard_conformance.cli.say import complain
from baseboard_conformance.exits import ExitCode, SuiteError

#: How the argument parser leaves: when it does not understand the command line, and after Ctrl-C.
_PARSER_EXITS: Final = {2: ExitCode.USAGE, 130: ExitCode.INTERRUPTED}


def main() -> None:
    """Run the command on the command line; see :class:`ExitCode` for how it ends."""
    try:
        with _terminable():
            build_app()()
    except SuiteError as error:
        complain(str(error))
        sys.exit(error.code)
    except SystemExit as stop:
        code = stop.code
        sys.exit(_PARSER_EXITS.get(code, code) if isinstance(code, int) else code)


@contextmanager
def _terminable() -> Generator[None]:
    """SIGTERM, by which CI systems cancel a job, acts as Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    main()
