"""Finds the OpenMP runtime in this process, so that the kernels run on torch's threads and not beside them."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Final

from baseboard.kit.procfs import read_lines

#: The runtimes of GNU, Intel and LLVM: all export GNU's entry point.
_RUNTIME: Final = re.compile(r"lib(gomp|iomp5|omp)\b.*\.so")


def find_parallel_entry(torch_folder: Path) -> int | None:
    """Address of ``GOMP_parallel`` in the runtime that torch uses; None where no runtime is loaded.

    Several may be: that in torch's own folder is torch's, unless one was loaded before all others (``LD_PRELOAD``),
    which then stands in for it.
    """
    if _preloaded_entry() is not None:
        return _preloaded_entry()
    paths = {line.split(maxsplit=5)[5] for line in read_lines(Path("/proc/self/maps")) if line.count("/")}
    runtimes = sorted(path for path in paths if _RUNTIME.search(Path(path).name))
    runtimes.sort(key=lambda path: torch_folder not in Path(path).parents)
    for path in runtimes:
        entry = _entry(ctypes.CDLL(path))
        if entry is not None:
            return entry
    return None


def _preloaded_entry() -> int | None:
    """The entry that is visible to the whole process."""
    return _entry(ctypes.CDLL(None))


def _entry(library: ctypes.CDLL) -> int | None:
    function = getattr(library, "GOMP_parallel", None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value
