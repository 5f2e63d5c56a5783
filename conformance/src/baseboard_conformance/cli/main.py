"""The console script ``baseboard-conformance``."""

from __future__ import annotations

import sys
from typing import Final

from baseboard_conformance.cli.app import build_app
from baseboard_conformance.cli.say import complain
from baseboard_conformance.exits import ExitCode, SuiteError

#: How the argument parser leaves when it does not understand the command line.
_PARSER_EXIT: Final = 2


def main() -> None:
    """Run the command on the command line; see :class:`ExitCode` for how it ends."""
    try:
        build_app()()
    except SuiteError as error:
        complain(str(error))
        sys.exit(error.code)
    except SystemExit as stop:
        sys.exit(ExitCode.USAGE if stop.code == _PARSER_EXIT else stop.code)


if __name__ == "__main__":
    main()
