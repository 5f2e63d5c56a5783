"""What a process needs in its environment to find the stand-in where others find CANN."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from baseboard_ascend_standin.build import build

#: The name of the instrument that computes operators in a process that opens a backend.
INSTRUMENT: Final = "ascend_standin"
#: Which chip the library says it is.
SOC: Final = "STANDIN_SOC"
#: Where the compiled library is kept; else the system's folder for temporary files.
CACHE: Final = "BASEBOARD_STANDIN_CACHE"


def folder() -> Path:
    """Where the compiled libraries lie; they are made when they are not there."""
    return build(Path(os.environ.get(CACHE, tempfile.gettempdir())))


def standin_environment(variables: Mapping[str, str], soc: str) -> dict[str, str]:
    """``variables`` and what the stand-in adds to them, for a process of its own on one chip ``soc``."""
    instruments = [name for name in variables.get("BASEBOARD_INSTRUMENTS", "").split(",") if name]
    return {
        **variables,
        **same_thread(),
        "LD_LIBRARY_PATH": os.pathsep.join([str(folder()), *filter(None, [variables.get("LD_LIBRARY_PATH")])]),
        "BASEBOARD_INSTRUMENTS": ",".join([*instruments, INSTRUMENT]),
        SOC: soc,
    }


def same_thread() -> dict[str, str]:
    """Torch_npu hands work to the driver from a thread of its own; the stand-in wants the caller's."""
    return {"TASK_QUEUE_ENABLE": "0"}
