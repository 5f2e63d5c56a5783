"""``ascend-standin COMMAND...``: run a command as if there were an NPU."""

from __future__ import annotations

import os
import shutil
import sys
from argparse import REMAINDER, ArgumentParser
from pathlib import Path

from baseboard_ascend_standin.environment import standin_environment


def main() -> None:
    """Become the command. It is looked for beside this Python first, so that a venv need not be active."""
    parser = ArgumentParser(prog="ascend-standin", description="Run a command as if there were an NPU.")
    parser.add_argument("--soc", default="Ascend910B2", help="the chip, by the name that CANN gives it")
    parser.add_argument("command", nargs=REMAINDER, help="the command and its arguments")
    given = parser.parse_args()
    if not given.command:
        parser.error("give a command, such as: baseboard backends")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    program = shutil.which(given.command[0], path=path)
    if program is None:
        parser.error(f"there is no command {given.command[0]!r}")
    os.execve(program, given.command, standin_environment(os.environ, given.soc))
