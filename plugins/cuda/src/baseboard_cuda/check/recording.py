"""Collects the launches that the backend would do, instead of doing them: so what is checked is what is launched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import torch

from baseboard_cuda import attention
from baseboard_cuda.kernels import blocks, operators, sampling

#: Where the backend looks its kernels up.
_PLACES: Final = (
    (attention, ("paged_attention", "join_splits", "write_kv")),
    (blocks, ("copy_blocks", "zero_blocks")),
    (operators, ("rms_norm", "add_rms_norm", "silu_and_mul", "rotary_embedding")),
    (sampling, ("sample",)),
)
_TYPES: Final = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}
_ALIGNED: Final = 16
_LAUNCH_OPTIONS: Final = ("num_warps", "num_stages", "enable_fp_fusion")


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch as Triton would specialise it."""

    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    aligned: tuple[str, ...]  #: arguments known to be multiples of 16
    options: dict[str, Any]


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Within, launches are appended to the list and nothing is computed. Not for the interpreter."""
    launches: list[Launch] = []
    with ExitStack() as stack:
        for module, names in _PLACES:
            for name in names:
                stack.enter_context(patch.object(module, name, _Recorder(getattr(module, name), launches.append)))
        yield launches


class _Recorder:
    def __init__(self, kernel: Any, record: Callable[[Launch], None]) -> None:
        self._kernel: Final = kernel
        self._record: Final = record

    def __getitem__(self, grid: object) -> Callable[..., None]:
        del grid
        return self._launch

    def _launch(self, *args: Any, **kwargs: Any) -> None:
        options = {name: kwargs.pop(name) for name in _LAUNCH_OPTIONS if name in kwargs}
        given = dict(zip(self._kernel.arg_names, args, strict=False)) | kwargs
        signature: dict[str, str] = {}
        constants: dict[str, Any] = {}
        aligned: list[str] = []
        for param in self._kernel.params:
            value = given[param.name]
            kind = _kind(value)
            specialised = not param.do_not_specialize
            if param.is_constexpr or value is None or (specialised and kind != "fp32" and _is_one(value)):
                signature[param.name], constants[param.name] = "constexpr", value
                continue
            signature[param.name] = kind
            if specialised and _is_aligned(value):
                aligned.append(param.name)
        self._record(Launch(self._kernel, signature, constants, tuple(aligned), options))


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"*{_TYPES[value.dtype]}"
    if isinstance(value, float):
        return "fp32"
    return "i32" if isinstance(value, int) and abs(value) < 2**31 else "i64"


def _is_one(value: Any) -> bool:
    return isinstance(value, int) and value == 1


def _is_aligned(value: Any) -> bool:
    # Tensors of torch's allocator for CUDA begin at multiples of 512.
    return isinstance(value, torch.Tensor) or (isinstance(value, int) and value % _ALIGNED == 0)
