"""Launching kernels, with all that is otherwise implied said."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


def on_grid(kernel: Any, grid: tuple[int, ...], warps: int, stages: int = 1) -> Callable[..., None]:
    """Call the result with the kernel's arguments: it is enqueued on the current stream.

    ``stages`` are loads under way at once in a loop. Multiplications and additions are fused: Triton is about to
    change what is implied.
    """
    return partial(kernel[grid], num_warps=warps, num_stages=stages, enable_fp_fusion=True)
