"""What runs where: the probe's tests everywhere; those in ``emulated`` in the venv that has torch_npu."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[3] / "plugins" / "ascend_npu" / "src"

if find_spec("baseboard_ascend_npu") is None:
    sys.path.append(str(SOURCE))


def _why_not() -> str | None:
    if find_spec("torch_npu") is None:
        return "torch_npu is not installed here: they run in the venv of make test-npu"
    missing = [tool for tool in ("gcc", "nm", "strings") if shutil.which(tool) is None]
    return f"{', '.join(missing)} missing: they are needed to build the stand-in" if missing else None


WHY_NOT_EMULATED = _why_not()
collect_ignore = [] if WHY_NOT_EMULATED is None else ["emulated"]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if WHY_NOT_EMULATED is not None:
        terminalreporter.write_line(f"tests/plugins/ascend_npu/emulated was not collected: {WHY_NOT_EMULATED}")
