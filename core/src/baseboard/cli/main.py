"""The console script ``baseboard``."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Final

from baseboard.contract import BaseboardError

DEBUG_VARIABLE: Final = "BASEBOARD_DEBUG"


def main() -> None:
    """Run the command on the command line. An error of Baseboard's own is one line on stderr and exit code 1."""
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        sys.exit(f'error: the command line needs {" and ".join(missing)}: pip install "baseboard[torch]"')

    from baseboard.cli.app import build_app, print_error

    app = build_app()
    try:
        app()
    except BaseboardError as error:
        if os.environ.get(DEBUG_VARIABLE) == "1":
            raise
        print_error(error)
        sys.exit(1)
