"""The whole program in processes of its own: without CANN it works and says what is missing; with it, it generates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from baseboard_ascend_standin.environment import folder


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key not in {"STANDIN_SOC", "LD_LIBRARY_PATH"}}
    return subprocess.run(
        [sys.executable, *command], env=clean | environment, capture_output=True, text=True, check=False, timeout=300
    )


def backends(**environment: str) -> dict[str, Any]:
    done = run("-c", "from baseboard.cli.main import main; main()", "backends", "--json", **environment)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (ascend,) = [each for each in report["backends"] if each["name"] == "ascend_npu"]
    return {"chosen": report["chosen"]["backend"], "devices": ascend["devices"]}


def test_without_cann_the_program_works_and_says_so() -> None:
    found = backends()
    assert found["chosen"] == "reference"
    (device,) = found["devices"]
    assert device["reason"].startswith("CANN is not installed or not on the library path: libascendcl.so")
    # Torch would import torch_npu by itself, and fail.
    assert "Failed to load the backend extension: torch_npu" in run("-c", "import torch").stderr
    code = (
        "from baseboard.discovery import open_backend; b = open_backend(); import torch; print(b.name, torch.ones(2))"
    )
    done = run("-c", code)
    assert done.stdout.startswith("reference tensor([1., 1.])"), done.stderr
    cli = ("-c", "from baseboard.cli.main import main; main()")
    answered = run(*cli, "generate", "--temperature", "0", "--max-tokens", "4", "--max-model-len", "64", "One, two,")
    assert answered.returncode == 0, answered.stderr  # transformers does not trip over torch_npu either
    assert answered.stdout.strip()
    judged = run("-m", "baseboard_conformance.cli.main", "run", "--backend", "ascend_npu", "--profile", "smoke")
    assert judged.returncode == 12
    assert "backend 'ascend_npu' cannot be used: CANN is not installed" in judged.stderr
    refused = run("-c", "from baseboard.discovery import open_backend; open_backend('ascend_npu')")
    assert "backend 'ascend_npu' cannot be used: CANN is not installed" in refused.stderr


@pytest.mark.parametrize(
    ("environment", "reasons"),
    [
        ({}, [None]),
        ({"STANDIN_DEVICES": "3", "ASCEND_RT_VISIBLE_DEVICES": "0,2"}, [None, None]),
        ({"ASCEND_RT_VISIBLE_DEVICES": ""}, ["ASCEND_RT_VISIBLE_DEVICES is empty, which hides all NPUs"]),
        ({"ASCEND_RT_VISIBLE_DEVICES": "5"}, ["ASCEND_RT_VISIBLE_DEVICES=5 lets no NPU through"]),
        ({"STANDIN_DEVICES": "0"}, ["the driver sees no NPU"]),
        ({"STANDIN_SOC": "Ascend310P3"}, ["Ascend310P3 (Atlas 300I inference series) is not supported"]),
    ],
)
def test_with_cann(environment: dict[str, str], reasons: list[str | None]) -> None:
    found = backends(LD_LIBRARY_PATH=str(folder()), **environment)
    assert len(found["devices"]) == len(reasons)
    for device, reason in zip(found["devices"], reasons, strict=True):
        assert device["available"] == (reason is None)
        assert reason is None or device["reason"].startswith(reason)
    assert found["chosen"] == ("ascend_npu" if reasons[0] is None else "reference")
