"""The fused operators as their page in the docs defines them, in NumPy.

``round_`` is applied to every intermediate that a model in plain torch would store: with the identity a formula is the
oracle, with rounding to the dtype it is the naive computation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from baseboard_conformance.numerics import Array

Round: TypeAlias = Callable[[Array], Array]
#: All results of an operator, from its spec and arguments.
Formula: TypeAlias = Callable[[Round, Mapping[str, Any], Sequence[Any]], tuple[Array, ...]]


def rms_norm(round_: Round, spec: Mapping[str, Any], arguments: Sequence[Array]) -> tuple[Array, ...]:
    x, weight = arguments
    scale = 1 / np.sqrt((x**2).mean(axis=-1, keepdims=True) + spec["eps"])
    return (round_(round_(x * scale) * weight),)


def add_rms_norm(round_: Round, spec: Mapping[str, Any], arguments: Sequence[Array]) -> tuple[Array, ...]:
    x, residual, weight = arguments
    total = round_(x + residual)
    return (*rms_norm(round_, spec, (total, weight)), total)


def silu_and_mul(round_: Round, spec: Mapping[str, Any], arguments: Sequence[Array]) -> tuple[Array, ...]:
    del spec
    gate, up = np.split(arguments[0], 2, axis=-1)
    return (round_(round_(gate / (1 + np.exp(-gate))) * up),)


def rotary_embedding(round_: Round, spec: Mapping[str, Any], arguments: Sequence[Any]) -> tuple[Array, ...]:
    query, key, positions, table = arguments
    half = spec["rotary_dim"] // 2
    cosine, sine = round_(table[positions, None, :half]), round_(table[positions, None, half:])
    first, second = pairs(spec["rotary_dim"], spec["interleaved"])
    results: list[Array] = []
    for x in (query, key):
        out: Array = x.copy()
        a, b = x[..., first], x[..., second]
        out[..., first] = round_(round_(a * cosine) - round_(b * sine))
        out[..., second] = round_(round_(b * cosine) + round_(a * sine))
        results.append(out)
    return tuple(results)


def pairs(rotary_dim: int, interleaved: object) -> tuple[slice, slice]:
    """Which elements turn together: neighbours, or the same place in both halves."""
    if interleaved:
        return slice(0, rotary_dim, 2), slice(1, rotary_dim, 2)
    return slice(0, rotary_dim // 2), slice(rotary_dim // 2, rotary_dim)


FORMULAS: Final[Mapping[str, Formula]] = {
    "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "silu_and_mul": silu_and_mul,
    "rotary_embedding": rotary_embedding,
}
