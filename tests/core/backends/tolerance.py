"""How far a backend may be from the float64 truth: no more than the dtype itself makes unavoidable, times two."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


def assert_close(got: torch.Tensor, truth: NDArray[np.float64], naive: torch.Tensor) -> None:
    """``[T, H, Dv]`` each. Bounds the largest error, and the relative L2 error of every (token, head) row."""
    assert got.dtype == naive.dtype
    assert got.shape == naive.shape
    eps = torch.finfo(got.dtype).eps
    result, reference = (x.double().numpy() for x in (got, naive))
    assert np.isfinite(result).all()
    if not truth.size:
        return
    allowed = 2 * np.abs(reference - truth).max() + eps * np.abs(truth).max()
    worst = np.abs(result - truth).max()
    assert worst <= allowed, f"largest error {worst:.3g}, allowed {allowed:.3g}"
    floor = max(2 * _row_errors(reference, truth).max(), 4 * eps)
    worst = _row_errors(result, truth).max()
    assert worst <= floor, f"largest relative row error {worst:.3g}, allowed {floor:.3g}"


def _row_errors(got: NDArray[np.float64], truth: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(truth, axis=-1)
    errors = np.linalg.norm(got - truth, axis=-1)
    assert (errors[norms == 0] == 0).all()
    return errors[norms > 0] / norms[norms > 0]
