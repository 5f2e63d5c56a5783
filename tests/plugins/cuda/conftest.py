"""Discovery and swaps are tested everywhere; kernels only where triton is: ``make test-cuda`` has it."""

from __future__ import annotations

import os
from importlib.util import find_spec

collect_ignore: list[str] = []
_WHY: list[str] = []

if find_spec("baseboard_cuda") is None:
    collect_ignore += [
        "test_discovery.py",
        "test_faults.py",
        "test_options.py",
        "test_registered.py",
        "test_swap.py",
        "test_tiles.py",
    ]
    collect_ignore += ["interpreted", "compiled"]
    _WHY.append("tests/plugins/cuda: not collected, baseboard-cuda is not installed")
elif find_spec("triton") is None:
    collect_ignore += ["interpreted", "compiled"]
    _WHY.append(
        "tests/plugins/cuda/interpreted, compiled: not collected, triton is not installed (make test-cuda has it)"
    )
else:
    # Triton reads it when a kernel is defined. What is compiled for real is compiled in processes of its own.
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_report_header() -> list[str]:
    return _WHY
