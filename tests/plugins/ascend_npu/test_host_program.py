"""What a user sees where something is missing: whole programs, in installations that are made up. Runs everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from baseboard_ascend_npu import installation

SOURCES = Path(installation.__file__).parents[1]
RELEASE = torch.__version__.partition("+")[0]
CLI = "from baseboard.cli.main import main; main()"
#: Opening it fails, and not before torch was imported.
OPEN = "from baseboard import LLM; LLM('no-such-model.gguf', backend='reference')"
#: As the real one where there is no CANN.
NO_LIBRARY = "raise OSError('libascendcl.so: cannot open shared object file')"


class Host:
    """A folder in front of the import path, with the plugin in it and whatever a test pretends is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pretend("baseboard-ascend-npu", "1.0", "[baseboard.backends]\nascend_npu = baseboard_ascend_npu\n")

    def pretend(self, name: str, version: str, entry_points: str = "", files: Mapping[str, str] | None = None) -> None:
        """A distribution with a package of the same name, if it has files."""
        metadata = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (metadata / "entry_points.txt").write_text(entry_points)
        for file, text in (files or {}).items():
            (self.folder / name).mkdir(exist_ok=True)
            (self.folder / name / file).write_text(text)

    def torch_npu(self, version: str = RELEASE) -> None:
        """It makes torch import it, as the real one does, and cannot be imported."""
        entry_points = "[torch.backends]\ntorch_npu = torch_npu:_autoload\n"
        self.pretend("torch_npu", version, entry_points, {"__init__.py": NO_LIBRARY})

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        removed = {"LD_LIBRARY_PATH", "ASCEND_HOME_PATH", "TORCH_DEVICE_BACKEND_AUTOLOAD", "BASEBOARD_INSTRUMENTS"}
        variables = {key: value for key, value in os.environ.items() if key not in removed}
        path = [str(self.folder), str(SOURCES), *filter(None, [variables.get("PYTHONPATH")])]
        return subprocess.run(
            [sys.executable, "-c", *command],
            env=variables | {"PYTHONPATH": os.pathsep.join(path)},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def reason(self) -> str:
        """What ``baseboard backends`` says about the NPU. It chooses another backend."""
        done = self.run(CLI, "backends", "--json")
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        assert report["chosen"]["backend"] != "ascend_npu"
        (found,) = [backend for backend in report["backends"] if backend["name"] == "ascend_npu"]
        assert (found["loaded"], found["available"]) == (True, False)
        return found["reason"]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def no_cann(host: Host) -> None:
    host.torch_npu()


def nothing(host: Host) -> None:
    """Nothing is added."""


def cuda_torch(host: Host) -> None:
    host.pretend("torch", "2.13.0", files={"__init__.py": "raise RuntimeError", "version.py": "cuda = '13.0'\n"})
    host.torch_npu("2.13.0")


def another_version(host: Host) -> None:
    host.torch_npu("2.7.1")


#: What is missing, and what is said. Where torch_npu is installed nobody can find it missing.
CASES: list[tuple[Callable[[Host], None], str]] = [
    (no_cann, "CANN is not installed or not on the library path: libascendcl.so: cannot open shared object file"),
    (cuda_torch, "torch 2.13.0 is built for CUDA 13.0, and torch_npu 2.13.0 works with the CPU build alone: install"),
    (another_version, f"torch_npu 2.7.1 works with torch 2.7.1 alone, but torch {torch.__version__} is installed"),
]
if find_spec("torch_npu") is None:
    CASES.append((nothing, f"torch_npu is not installed: pip install torch_npu=={RELEASE}"))


@pytest.mark.parametrize(("missing", "reason"), CASES)
def test_backends_says_what_is_missing(host: Host, missing: Callable[[Host], None], reason: str) -> None:
    missing(host)
    assert host.reason().startswith(reason)


def test_a_torch_that_could_not_be_imported_can_be(host: Host) -> None:
    host.torch_npu()
    alone = host.run("import torch")
    assert "Failed to load the backend extension: torch_npu" in alone.stderr
    for command in ((OPEN,), (CLI, "generate", "--model", "no-such-model.gguf", "hello")):
        done = host.run(*command)
        assert done.returncode == 1
        assert "no-such-model.gguf" in done.stderr
        assert "torch_npu" not in done.stderr


def test_the_npu_that_is_asked_for_by_name_is_refused_with_the_reason(host: Host) -> None:
    host.torch_npu()
    done = host.run("from baseboard.discovery import open_backend; open_backend('ascend_npu')")
    assert "BackendUnavailable: backend 'ascend_npu' cannot be used: CANN is not installed" in done.stderr


def test_there_is_no_npu_to_check(host: Host) -> None:
    host.torch_npu()
    done = host.run("import runpy; runpy.run_module('baseboard_ascend_npu.check', run_name='__main__')")
    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith("no NPU to ask: CANN is not installed or not on the library path")


def test_importing_the_program_imports_no_torch(host: Host) -> None:
    done = host.run("import sys; from baseboard import LLM; import baseboard.cli.app; print('torch' in sys.modules)")
    assert done.stdout == "False\n", done.stderr
