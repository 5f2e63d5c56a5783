"""A vendor's plugin in a distribution of its own: from nothing to a passing report, by the CI recipes of the docs."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from baseboard_conformance.scaffold import render

HERE = Path(__file__).parent / "thirdparty"
DOCS = Path(__file__).parents[2] / "docs/conformance.md"
#: What ``pip`` means in the recipes: the plugin is installed for real, its dependencies are here already.
PIP = """#!/bin/sh
[ "$1 $2 $3" = "install . baseboard-conformance" ] || exit 9
exec "{python}" -m pip install --quiet --no-index --no-deps --no-build-isolation --target "$SITE" .
"""


class Machine:
    """A CI machine with a checkout of the plugin."""

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "checkout"
        shutil.copytree(HERE, self.checkout)
        tools = folder / "bin"
        tools.mkdir()
        pip = tools / "pip"
        pip.write_text(PIP.format(python=sys.executable))
        pip.chmod(pip.stat().st_mode | stat.S_IXUSR)
        site = folder / "site"
        self.variables = {
            **os.environ,
            "PATH": os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "SITE": str(site),
            "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]),
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        }

    def shell(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script],
            cwd=self.checkout,
            env={**self.variables, **variables},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )

    def report(self) -> dict:
        return json.loads((self.checkout / "report/report.json").read_text())


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


def recipes() -> list[dict]:
    """The YAML blocks of the docs."""
    blocks = DOCS.read_text().split("```yaml\n")[1:]
    return [yaml.safe_load(block.partition("```")[0]) for block in blocks]


def test_the_plugin_is_what_init_writes() -> None:
    files = {Path(*parts).as_posix(): text for parts, text in render("sdpa")}
    there = [p for p in HERE.rglob("*") if p.is_file() and "__pycache__" not in p.parts and ".egg" not in str(p)]
    assert {path.relative_to(HERE).as_posix(): path.read_text() for path in there} == files


def test_from_nothing_to_a_passing_report(machine) -> None:
    """The workflow for GitHub, step by step as far as it is shell."""
    job = recipes()[0]["jobs"]["conformance"]
    variables = {**job["env"], "PROFILE": "smoke"}
    for step in job["steps"]:
        if "run" in step:
            done = machine.shell(step["run"], **variables)
            assert done.returncode == 0, f"{step['run']}\n{done.stdout}{done.stderr}"
    report = machine.report()
    assert report["verdict"]["word"] == "conformant"
    assert report["backend"]["distribution"] == "baseboard-sdpa"
    summary = Path(machine.variables["GITHUB_STEP_SUMMARY"]).read_text()
    assert summary.startswith("# sdpa: conformant")


MISTAKES = {
    "h % Hkv": (
        "repeat_interleave(self.spec.num_heads // self.spec.num_kv_heads, dim=1)",
        "repeat(1, self.spec.num_heads // self.spec.num_kv_heads, 1)",
    ),
    "the scale is left out": ("scale=self.spec.scale", "scale=1.0"),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_wrong_version_is_told_its_mistake(machine, words) -> None:
    """The snippet for GitLab, with one line of the kernel wrong."""
    kernel = machine.checkout / "src/baseboard_sdpa/attention.py"
    right, wrong = MISTAKES[words]
    assert right in kernel.read_text()
    kernel.write_text(kernel.read_text().replace(right, wrong))
    job = recipes()[1]["conformance"]
    options = "--case attention.plain/*/float32/d64 --case attention.window/decode/float32/preferred"
    install, run, verify = job["script"]
    assert machine.shell(install, **job["variables"]).returncode == 0
    done = machine.shell(run, **(job["variables"] | {"OPTIONS": options}))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "diagnosis: this is what comes out when" in done.stdout
    assert words in done.stdout
    assert machine.shell(verify).returncode == 1
    assert list((machine.checkout / "report/failures").glob("*.npz"))
