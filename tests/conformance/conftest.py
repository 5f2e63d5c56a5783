from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from baseboard_conformance.cli.main import main


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


Cli = Callable[..., Ended]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)  # small tensors gain nothing from more, and a busy machine loses


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line, run in ``tmp_path``; plugins in ``paths`` are installed for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object, paths: tuple[Path, ...] = ()) -> Ended:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["baseboard-conformance", *map(str, arguments)])
            patch.setenv("PYTHONPATH", os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")]))
            for path in paths:
                patch.syspath_prepend(path)
            with pytest.raises(SystemExit) as stop:
                main()
        code = stop.value.code
        return Ended(0 if code is None else int(code), *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def opened() -> Iterator[object]:
    from baseboard.discovery import open_backend

    with open_backend("reference") as backend:
        yield backend
