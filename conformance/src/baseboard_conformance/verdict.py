"""Is a result as right as its dtype allows? Two bounds, both relative to a naive computation in the same dtype.

::

    ratio      largest error of any element    /  (2 x the naive one's largest  +  floor x eps x largest true value)
    row_ratio  largest relative L2 of a row    /  max(2 x the naive one's largest, 2 x floor x eps)

A row is one head of one token. A fixed tolerance leaks: with 4,096 keys of random values the result is so small that
``allclose(1e-2)`` passes a kernel that drops the last key. The first bound alone misses a wrong row of small values,
the second alone a single wrong element of a large row.

A row's error is relative to the true row, or to its *spread* where that is larger: the root of the sum of its squared
terms, which is what roundings of different sign add up to. The two are alike, unless the terms cancel. In a head of
few elements they do so by chance; then nothing but luck decides which of two right results is nearer to a truth of
almost zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from baseboard.contract import DType
from baseboard_conformance.numerics import EPSILON, Array

#: In float32 the naive computation is the same sum in another order, and may be right by luck. What no order avoids
#: grows with the logits: an error of eps in a logit of 100 is one of 100 eps in its weight.
_FLOOR: Final[dict[DType, float]] = {"float32": 32.0, "bfloat16": 1.0, "float16": 1.0}

POLICY: Final = (
    "error at most 2x that of a naive computation in the same dtype (plus a floor of rounding), for the largest "
    "element and for the relative L2 norm of every (token, head) row"
)


@dataclass(frozen=True, slots=True)
class Measure:
    """How far a result is from the truth. Ratios above 1 are failures."""

    ratio: float
    row_ratio: float
    error: float  #: largest absolute error
    allowed: float
    row_error: float  #: largest relative L2 norm of a row's error
    row_allowed: float
    nmse: float  #: reported, never judged
    token: int  #: of the worst row
    head: int

    @property
    def passed(self) -> bool:
        return self.ratio <= 1 and self.row_ratio <= 1

    @property
    def worst(self) -> float:
        return max(self.ratio, self.row_ratio)

    def as_dict(self) -> dict[str, float]:
        """For the report; what is not finite is written as the largest number."""
        values = {"ratio": self.ratio, "row_ratio": self.row_ratio, "error": self.error, "nmse": self.nmse}
        return {name: min(float(value), 1e300) for name, value in values.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Yardstick:
    """What a result is held against."""

    truth: Array  #: ``[T, H, Dv]``
    naive: Array  #: the same from a naive computation in ``dtype``
    dtype: DType
    largest_logit: float = 0.0  #: absolute, over all logits that are seen
    spread: Array | None = None  #: as ``truth``; None: its elements are no sums, so nothing cancels

    @property
    def row_norms(self) -> Array:
        """L2 norms ``[T, H]`` that errors of rows are relative to."""
        norms: Array = np.linalg.norm(self.truth, axis=-1)
        return norms if self.spread is None else np.maximum(norms, np.linalg.norm(self.spread, axis=-1))

    @property
    def floor(self) -> float:
        """In units of eps."""
        least = _FLOOR[self.dtype]
        return max(least, self.largest_logit) if self.dtype == "float32" else least


def judge(got: Array, against: Yardstick) -> Measure:
    """Compare ``[T, H, Dv]`` arrays. What is not finite in ``got`` where the truth is counts as infinitely wrong."""
    truth, naive, eps = against.truth, against.naive, EPSILON[against.dtype]
    errors = np.abs(np.where(np.isfinite(got), got, np.inf) - truth)
    scale = float(np.abs(truth).max(initial=0))
    allowed = 2 * float(np.abs(naive - truth).max(initial=0)) + against.floor * eps * scale
    error = float(errors.max(initial=0))
    norms = against.row_norms
    rows = _row_errors(errors, norms)
    row_allowed = max(2 * float(_row_errors(naive - truth, norms).max(initial=0)), 2 * against.floor * eps)
    row_error = float(rows.max(initial=0))
    token, head = np.unravel_index(int(rows.argmax()), rows.shape) if rows.size else (0, 0)
    power = float((truth**2).sum())
    return Measure(
        ratio=_ratio(error, allowed),
        row_ratio=_ratio(row_error, row_allowed),
        error=error,
        allowed=allowed,
        row_error=row_error,
        row_allowed=row_allowed,
        nmse=float((errors**2).sum()) / power if power else 0.0,
        token=int(token),
        head=int(head),
    )


def _row_errors(errors: Array, norms: Array) -> Array:
    """Relative L2 of each row ``[T, H]``; a row that is truly zero allows no error at all."""
    found: Array = np.linalg.norm(errors, axis=-1)
    relative = np.divide(found, norms, out=np.full_like(norms, np.inf), where=norms > 0)
    return np.where((norms == 0) & (found == 0), 0.0, relative)


def _ratio(value: float, limit: float) -> float:
    if limit > 0:
        return value / limit
    return 0.0 if value == 0 else np.inf
