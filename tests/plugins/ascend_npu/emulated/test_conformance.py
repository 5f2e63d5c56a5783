"""The conformance suite's own processes, on the stand-in: the door that vendors and users come through."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from baseboard_ascend_standin.environment import SOC, standin_environment


def test_the_suite_finds_the_backend_conformant(tmp_path: Path) -> None:
    soc = os.environ[SOC]
    command = [sys.executable, "-m", "baseboard_conformance.cli.main", "run", "--backend", "ascend_npu"]
    done = subprocess.run(
        [*command, "--profile", "smoke", "--report-dir", str(tmp_path)],
        env=standin_environment(os.environ, soc),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["backend"]["device"]["arch"] == soc
    passed = {each["case"] for each in report["results"] if each["outcome"] == "PASS"}
    for dtype in ("bfloat16", "float16"):
        assert sum(dtype in name for name in passed) > 40
