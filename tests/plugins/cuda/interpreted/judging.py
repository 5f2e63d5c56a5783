"""How far the kernels may be from the float64 truth."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from core.backends.naive import naive_attention
from core.backends.oracle import attention
from core.backends.world import World

#: In units of the dtype's epsilon. In float32 the naive sum is the same in another order and may be right by luck:
#: the bound is the conformance suite's.
_FLOOR: Final = {torch.float32: 16.0, torch.float16: 1.0}


def check(world: World, got: torch.Tensor) -> None:
    """Compare the rows that are no padding: at most twice the naive computation's error, and some rounding."""
    parts = [index for index, row in enumerate(world.rows) if not row.padding]
    tensors = [(world.query[i], world.key[i], world.value[i]) for i in parts]
    truth = np.concatenate([attention(*(x.double().numpy() for x in t), world.spec, world.causal) for t in tensors])
    naive = torch.cat([naive_attention(*t, world.spec, world.causal) for t in tensors]).double().numpy()
    result = got[world.real].double().numpy()
    assert result.shape == truth.shape
    floor = _FLOOR[got.dtype] * torch.finfo(got.dtype).eps
    worst, allowed = np.abs(result - truth).max(), 2 * np.abs(naive - truth).max() + floor * np.abs(truth).max()
    assert worst <= allowed, f"largest error {worst:.3g}, allowed {allowed:.3g}"
    rows, naive_rows = (np.linalg.norm(x - truth, axis=-1) / np.linalg.norm(truth, axis=-1) for x in (result, naive))
    allowed = max(2 * naive_rows.max(), 2 * floor)
    assert rows.max() <= allowed, f"largest relative error of a row {rows.max():.3g}, allowed {allowed:.3g}"
