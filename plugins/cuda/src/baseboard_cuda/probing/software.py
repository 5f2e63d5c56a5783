"""What is installed beside the plugin, found out without importing it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Software:
    """The Python packages that the backend runs on."""

    torch: bool
    torch_cuda: tuple[int, int] | None  #: the CUDA that torch was built for; None for a build without
    triton: bool


def installed_software() -> Software:
    """What the import system would find now. ``torch`` and ``triton`` are not imported: that takes seconds."""
    torch = find_spec("torch")
    origin = torch.origin if torch is not None else None
    return Software(
        torch=torch is not None,
        torch_cuda=None if origin is None else torch_cuda(Path(origin).with_name("version.py")),
        triton=find_spec("triton") is not None,
    )


def torch_cuda(version_file: Path) -> tuple[int, int] | None:
    """The CUDA version that torch's ``version.py`` names: ``cuda: Optional[str] = '12.8'``."""
    try:
        text = version_file.read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"""^cuda\s*(?::[^=]*)?=\s*['"](\d+)\.(\d+)""", text, re.MULTILINE)
    return None if found is None else (int(found[1]), int(found[2]))
