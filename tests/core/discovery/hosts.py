"""Processes of their own, with distributions installed for them alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest itself brings it


def install(folder, site):
    """Install the project in ``folder`` into ``site`` as an installer would: its package, and its ``.dist-info``."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    shutil.copytree(folder / "src", site, dirs_exist_ok=True)
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups))


class Host:
    """A process of its own that sees the distributions in ``site`` beside those of this environment."""

    def __init__(self, site):
        self.site = site

    def python(self, code, **variables):
        return self._run("-c", code, **variables)

    def cli(self, *arguments, **variables):
        program = "from baseboard.cli.main import main; main()"
        return self._run("-c", program, *arguments, **variables)

    def _run(self, *arguments, **variables):
        clean = {key: value for key, value in os.environ.items() if not key.startswith("BASEBOARD_")}
        path = os.pathsep.join(filter(None, (str(self.site), clean.get("PYTHONPATH"))))
        environment = clean | {"PYTHONPATH": path, "COLUMNS": "80"} | variables
        command = [sys.executable, "-W", "error", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
