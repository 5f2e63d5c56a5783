"""Finds and loads the kernel library. No torch."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from typing import Final

from baseboard_cpu_avx512 import structures

#: Number of the interface that ``structures`` describes: ``BB_ABI`` in ``native/abi.h``.
ABI: Final = 3

_TAKES_ARGUMENTS: Final = {
    "bb_write": structures.WriteArgs,
    "bb_attend": structures.AttendArgs,
    "bb_move_blocks": structures.MoveArgs,
    "bb_rms_norm": structures.NormArgs,
    "bb_silu_and_mul": structures.GateArgs,
    "bb_rotary_embedding": structures.RotaryArgs,
}


class LibraryError(Exception):
    """The kernel library cannot be used; the message says why and what to do."""


@cache
def open_library() -> ctypes.CDLL:
    """The kernel library, loaded once in a process. Raises ``LibraryError``."""
    return load_library(find_library())


def find_library() -> str:
    """The file that the build put beside this package, or elsewhere for an editable install."""
    # It is no Python module, but its name is one's: so Python's own search finds it wherever it was installed.
    spec = find_spec(f"{__package__}._kernels")
    if spec is None or spec.origin is None:
        raise LibraryError(
            "the kernel library _kernels.so is missing: install a wheel made for this system, "
            "or build one with a C++ compiler and CMake (pip install baseboard-cpu-avx512)"
        )
    return spec.origin


def load_library(path: str) -> ctypes.CDLL:
    """The library at ``path`` with its functions declared. Raises ``LibraryError``."""
    try:
        library = ctypes.CDLL(path)
        abi = library.bb_abi()
    except (OSError, AttributeError) as error:
        raise LibraryError(f"the kernel library cannot be loaded, it was made for another system: {error}") from error
    if abi != ABI:
        raise LibraryError(f"the kernel library has interface {abi}, this package needs {ABI}: install it anew")
    for name, arguments in _TAKES_ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes = [ctypes.POINTER(arguments)]
        function.restype = ctypes.c_int32
    library.bb_use_openmp.argtypes = [ctypes.c_void_p]
    library.bb_use_openmp.restype = None
    library.bb_bind_workers.argtypes = [ctypes.POINTER(ctypes.c_int32), ctypes.c_int32]
    library.bb_bind_workers.restype = ctypes.c_int32
    library.bb_plan_create.argtypes = [ctypes.POINTER(structures.PlanArgs), ctypes.POINTER(ctypes.c_void_p)]
    library.bb_plan_create.restype = ctypes.c_int32
    library.bb_plan_destroy.argtypes = [ctypes.c_void_p]
    library.bb_plan_destroy.restype = None
    library.bb_plan_items.argtypes = [ctypes.c_void_p]
    library.bb_plan_items.restype = ctypes.c_int64
    return library
