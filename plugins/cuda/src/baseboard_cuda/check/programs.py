"""Programs that ``make gpu-check`` starts: the conformance suite, the same under the sanitizer, a model end to end.

Nothing has to be installed for them but what the plugin runs on: where the distributions of this repository are not,
an *overlay* of files says what their metadata would say.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from baseboard_cuda.check.report import Line
from baseboard_cuda_model import NOT_HERE

#: Distributions of this repository, and the entry points that matter here.
_OURS: Final = {
    "baseboard": "",
    "baseboard-conformance": "",
    "baseboard-cuda": "[baseboard.backends]\ncuda = baseboard_cuda\n",
}
#: The standard library has what the core uses of this package.
_SHIM: Final = "import importlib.metadata\nimport sys\n\nsys.modules[__name__] = importlib.metadata\n"


@dataclass(frozen=True, slots=True)
class Programs:
    """Starts programs with this Python, in an environment in which the plugin is found."""

    environment: Mapping[str, str]
    seconds: float = 7200.0  #: for each
    python: Sequence[str] = field(default_factory=lambda: (sys.executable,))

    def conformance(self, profile: str, folder: Path, prefix: Sequence[str] = (), cases: str = "*") -> Line:
        """As a vendor would run it, with its own report in ``folder``."""
        command = [*prefix, *self.python, "-m", "pytest", "-p", "baseboard_conformance.pytest_plugin"]
        # No settings but these: the repository's own want more of pytest than this needs.
        command += [
            "-c",
            os.devnull,
            "-p",
            "no:cacheprovider",
            "--pyargs",
            "baseboard_conformance",
            "-q",
            "--cts-backend",
            "cuda",
        ]
        command += ["--cts-profile", profile, "--cts-cases", cases, "--cts-report-dir", str(folder)]
        code, last = self._run(command)
        named = " under compute-sanitizer" if prefix else ""
        return Line(f"conformance, {profile}{named}", f"{last} (exit code {code})", code == 0)

    def sanitizer(self, folder: Path) -> Line:
        """The smoke profile under ``compute-sanitizer``, where that is found."""
        tool = shutil.which("compute-sanitizer", path=self.environment.get("PATH"))
        if tool is None:
            return Line("compute-sanitizer", "not installed here", None)
        prefix = [tool, "--target-processes", "all", "--error-exitcode", "99"]
        return self.conformance("smoke", folder, prefix)

    def model(self, backend: str = "cuda", new_tokens: int = 32) -> Line:
        """SmolLM2 in float32 against transformers; not judged where the packages are not installed."""
        return self._end_to_end("SmolLM2 equals transformers, float32", "baseboard_cuda_model", backend, new_tokens)

    def recorded(self, backend: str = "cuda", new_tokens: int = 32) -> Line:
        """SmolLM2 in float32 with recorded steps against the same without."""
        what = "SmolLM2 with CUDA graphs equals SmolLM2 without, float32"
        return self._end_to_end(what, "baseboard_cuda_model.recorded", backend, new_tokens)

    def _end_to_end(self, what: str, module: str, backend: str, new_tokens: int) -> Line:
        command = [*self.python, "-m", module, "--backend", backend]
        code, last = self._run([*command, "--new-tokens", str(new_tokens)])
        return Line(what, last, None if code == NOT_HERE else code == 0)

    def _run(self, command: Sequence[str]) -> tuple[int, str]:
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=dict(self.environment), timeout=self.seconds
            )
        except subprocess.TimeoutExpired:
            return 124, f"no end after {self.seconds:g} seconds"
        last = [text.strip().splitlines()[-1].strip("= ") for text in (done.stdout, done.stderr) if text.strip()]
        return done.returncode, "; ".join(last if done.returncode else last[:1])


def overlay() -> AbstractContextManager[str | None]:
    """A folder for the import path that makes up for what is not installed; None where nothing is missing."""
    installed = {(distribution.metadata["Name"] or "").lower() for distribution in distributions()}
    missing = [name for name in _OURS if name not in installed]
    shim = find_spec("importlib_metadata") is None
    if not missing and not shim:
        return nullcontext()
    folder = TemporaryDirectory(prefix="baseboard-cuda-")
    for name in missing:
        metadata = Path(folder.name) / f"{name.replace('-', '_')}-0+source.dist-info"
        metadata.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 0+source\n"
        (metadata / "METADATA").write_text(text, encoding="utf-8")
        (metadata / "entry_points.txt").write_text(_OURS[name], encoding="utf-8")
    if shim:
        (Path(folder.name) / "importlib_metadata.py").write_text(_SHIM, encoding="utf-8")
    return folder


def environment_with(folder: str | None) -> dict[str, str]:
    """The environment and import path of this process; pytest loads what it is told to, and nothing else."""
    paths = [path for path in (folder, *sys.path) if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
