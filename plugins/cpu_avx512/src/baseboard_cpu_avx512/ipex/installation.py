"""Which IPEX is installed, whether it fits the torch beside it, and its operators. No torch before they are loaded."""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final, Protocol, cast

from baseboard.contract import BackendUnavailable

_NAME: Final = "intel-extension-for-pytorch"
_LIBRARY: Final = "libintel-ext-pt-cpu.so"
_SERIES: Final = "2.8."  #: of IPEX and of torch: the library is linked to that torch and to no other
_WAY_OUT: Final = (
    "pip install torch==2.8.0 intel-extension-for-pytorch==2.8.0 (x86-64 Linux, Python 3.9 to 3.13), "
    "or leave the option kernels out to have this plugin's own"
)


class Operators(Protocol):
    """What is used of ``torch.ops.torch_ipex``. Arguments are positional; the last are scales of fp8 and a softcap."""

    def reshape_and_cache(self, *args: Any) -> Any: ...
    def single_query_cached_kv_attention(self, *args: Any) -> Any: ...
    def flash_attn_varlen_func(self, *args: Any) -> Any: ...


def obstacle() -> str | None:
    """Why IPEX cannot be used here, as far as what is installed tells without loading it; None: nothing in the way."""
    try:
        find_library()
    except BackendUnavailable as error:
        return str(error)
    return None


def load_operators() -> Operators:
    """IPEX's operators. Raises ``BackendUnavailable`` naming what was found, what is needed and the way out.

    Its library is loaded and not its Python package: that fails to import beside transformers 5, which the core needs,
    changes torch in many places, and raises an ``AttributeError`` of its own where torch's version does not fit.
    """
    path = find_library()
    import torch

    try:
        torch.ops.load_library(str(path))
        operators = torch.ops.torch_ipex
        for name in ("reshape_and_cache", "single_query_cached_kv_attention", "flash_attn_varlen_func"):
            getattr(operators, name)
    except (AttributeError, OSError, RuntimeError) as error:
        raise BackendUnavailable(f"kernels='ipex': {path} cannot be used: {error}; {_WAY_OUT}") from error
    return cast("Operators", operators)


def find_library() -> Path:
    """The library of an IPEX that fits. Raises ``BackendUnavailable`` as :func:`load_operators` does."""
    ipex, torch = _installed(_NAME), _installed("torch")
    found = f"kernels='ipex' needs {_NAME} {_SERIES}x on torch {_SERIES}x, and here"
    if ipex is None:
        raise BackendUnavailable(f"{found} it is not installed (torch is {_version(torch)}): {_WAY_OUT}")
    if not (_version(ipex).startswith(_SERIES) and _version(torch).startswith(_SERIES)):
        raise BackendUnavailable(f"{found} it is {_version(ipex)} on torch {_version(torch)}: {_WAY_OUT}")
    for file in ipex.files or ():
        if file.name == _LIBRARY:
            return Path(str(file.locate()))
    raise BackendUnavailable(f"{found} it is {_version(ipex)} without {_LIBRARY}, on {sys.platform}: {_WAY_OUT}")


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _version(installed: Distribution | None) -> str:
    return "not installed" if installed is None else installed.version
