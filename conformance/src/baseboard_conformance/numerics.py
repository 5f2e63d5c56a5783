"""The model's dtypes in NumPy: values are float64 arrays that hold only what the dtype can hold."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import DType

Array: TypeAlias = NDArray[np.float64]

#: Distance from 1 to the next number.
EPSILON: Final[dict[DType, float]] = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}


def rounded(values: Array, dtype: DType) -> Array:
    """``values`` rounded to the nearest number of ``dtype``, ties to even."""
    with np.errstate(over="ignore"):
        if dtype == "float16":
            return values.astype(np.float16).astype(np.float64)
        single = values.astype(np.float32)
    return (_bfloat16(single) if dtype == "bfloat16" else single).astype(np.float64)


def _bfloat16(single: NDArray[np.float32]) -> NDArray[np.float32]:
    bits = np.ascontiguousarray(single).view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    # A NaN's payload must not carry over into the exponent.
    up = np.where(np.isnan(single), bits, bits + half) & np.uint32(0xFFFF0000)
    return up.astype(np.uint32).view(np.float32)
