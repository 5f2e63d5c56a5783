"""What is installed, found out without importing any of it, and whether its parts fit together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

#: README of torch_npu: the CANN that a release is made for; later releases need no older one.
_OLDEST_CANN: Final = {(2, 8): "8.3", (2, 9): "8.5"}


@dataclass(frozen=True, slots=True)
class Installation:
    """Versions as text; None for what is not there, or does not tell."""

    torch: str | None
    torch_built_for: str | None  #: ``"CUDA 13.0"``, ``"ROCm 6.4"``; None for the CPU build
    torch_npu: str | None
    cann: str | None

    def obstacles(self) -> Iterator[str]:
        """What keeps torch_npu from being imported, what to fix first in front."""
        if self.torch is None:
            yield "torch is not installed: install its CPU build, then the torch_npu of the same version"
        elif self.torch_npu is None:
            yield f"torch_npu is not installed: pip install torch_npu=={_release(self.torch)}"
        else:
            yield from self._mismatches(self.torch, self.torch_npu)

    def _mismatches(self, torch: str, torch_npu: str) -> Iterator[str]:
        if self.torch_built_for is not None:
            yield (
                f"torch {torch} is built for {self.torch_built_for}, and torch_npu {torch_npu} works with the CPU "
                f"build alone: install the CPU build of torch {_release(torch_npu)}"
            )
        elif _release(torch) != _release(torch_npu):
            yield (
                f"torch_npu {torch_npu} works with torch {_release(torch_npu)} alone, but torch {torch} is installed: "
                f"pip install torch_npu=={_release(torch)}, or the CPU build of torch {_release(torch_npu)}"
            )
        wanted = _wanted_cann(torch_npu)
        if self.cann is not None and _numbers(self.cann) < _numbers(wanted):
            yield f"CANN {self.cann} is too old: torch_npu {torch_npu} is made for CANN {wanted} or newer; upgrade CANN"


def read_installation(environment: Mapping[str, str]) -> Installation:
    """Look at the environment of this process. Never raises for what is missing."""
    return Installation(_version("torch"), _torch_built_for(), _version("torch_npu"), _cann(environment))


def _version(distribution: str) -> str | None:
    """Looked up on disk: what is imported, or hidden from imports, has no say."""
    # The module must be there too: left-over metadata of a removed package is not an installation.
    if PathFinder.find_spec(distribution) is None:
        return None
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _torch_built_for() -> str | None:
    """Read from torch's own record of its build; wheels from PyPI do not tell it in their version."""
    spec = PathFinder.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    record = Path(spec.origin).with_name("version.py")
    text = record.read_text(encoding="utf-8") if record.is_file() else ""
    for name, called in (("cuda", "CUDA"), ("hip", "ROCm"), ("xpu", "XPU")):
        found = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        if found:
            return f"{called} {found[1]}"
    return None


def _cann(environment: Mapping[str, str]) -> str | None:
    """The version in CANN's own record, which lies in a folder of its toolkit; None where it is not to be found."""
    home = environment.get("ASCEND_HOME_PATH")
    if not home:
        return None
    for pattern in ("ascend_*_install.info", "*/ascend_*_install.info"):
        for record in sorted(Path(home).glob(pattern)):
            found = re.search(r"^version=(\S+)", record.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
            if found:
                return found[1]
    return None


def _wanted_cann(torch_npu: str) -> str:
    numbers = _numbers(torch_npu)
    known = [release for release in _OLDEST_CANN if release <= numbers]
    return _OLDEST_CANN[max(known or _OLDEST_CANN)]


def _release(version: str) -> str:
    """``2.13.0`` of ``2.13.0.post1+cpu``."""
    return ".".join(map(str, (*_numbers(version), *_third(version))))


def _numbers(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _third(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+\.\d+\.(\d+)", version)
    return (int(found[1]),) if found else ()
