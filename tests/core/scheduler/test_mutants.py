"""The random episodes are worth something: real mistakes, one at a time, do not get past them.

A dozen in the default run, all of them with ``BASEBOARD_LONG_TESTS=1``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.scheduler.mutants import MUTANTS, Mutant, changed_source, source_path

LONG = os.environ.get("BASEBOARD_LONG_TESTS") == "1"
CHOSEN = [pytest.param(number, id=m.reason.replace(" ", "-")) for number, m in enumerate(MUTANTS) if LONG or m.quick]


@pytest.mark.parametrize("number", CHOSEN)
def test_the_episodes_find_the_mistake(number: int) -> None:
    script = Path(__file__).parent / "mutants.py"
    try:
        ran = subprocess.run(
            [sys.executable, str(script), str(number)], capture_output=True, text=True, timeout=300, check=False
        )
    except subprocess.TimeoutExpired:
        return  # it hangs: noticed
    assert ran.returncode == 0, f"survived: {MUTANTS[number]}\n{ran.stdout}{ran.stderr}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.reason.replace(" ", "-"))
def test_every_mistake_can_still_be_made(mutant: Mutant) -> None:
    """The text that it changes is there, once, and the result is a module."""
    source = Path(source_path(mutant.module)).read_text(encoding="utf-8")
    compile(changed_source(mutant, source), mutant.module, "exec")


def test_without_a_mistake_the_episodes_pass() -> None:
    """The hunt itself raises no false alarm: a change of nothing survives."""
    code = (
        "from core.scheduler.mutants import *; "
        "print(hunt(Mutant('none', POOL, 'self.num_evictions = 0', 'self.num_evictions = 0'), 50))"
    )
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert ran.stdout.strip() == "None"
