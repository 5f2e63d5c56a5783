"""``operator_kernel``: None, or right. The numeric cases are provisional: the contract has no page of operators yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from baseboard.contract import DType
from baseboard_conformance.bench import Bench, require
from baseboard_conformance.case import Case, NotObservable, Profile
from baseboard_conformance.cases.attention import DTYPES
from baseboard_conformance.cases.simple import Promise, promised
from baseboard_conformance.claims import Need
from baseboard_conformance.numerics import Array, rounded
from baseboard_conformance.outcome import CheckFailedError
from baseboard_conformance.verdict import POLICY, Measure, Yardstick, judge

_EPS: Final = 1e-5
_WIDTH: Final = 96


@dataclass(frozen=True, slots=True)
class _Operator:
    """``formula`` computes every result of an operator; ``round_`` is applied to each intermediate."""

    arguments: tuple[tuple[int, ...], ...]  #: shapes
    spec: Mapping[str, Any]
    formula: Callable[[Callable[[Array], Array], tuple[Array, ...]], tuple[Array, ...]]


def _rms_norm(round_: Callable[[Array], Array], args: tuple[Array, ...]) -> tuple[Array, ...]:
    x, weight = args
    scale = round_(1 / np.sqrt((x**2).mean(axis=-1, keepdims=True) + _EPS))
    return (round_(round_(x * scale) * weight),)


def _add_rms_norm(round_: Callable[[Array], Array], args: tuple[Array, ...]) -> tuple[Array, ...]:
    x, residual, weight = args
    total = round_(x + residual)
    return (*_rms_norm(round_, (total, weight)), total)


def _silu_and_mul(round_: Callable[[Array], Array], args: tuple[Array, ...]) -> tuple[Array, ...]:
    gate, up = np.split(args[0], 2, axis=-1)
    return (round_(round_(gate / (1 + np.exp(-gate))) * up),)


_OPERATORS: Final[Mapping[str, _Operator]] = {
    "rms_norm": _Operator(((33, _WIDTH), (_WIDTH,)), {"hidden_size": _WIDTH, "eps": _EPS}, _rms_norm),
    "add_rms_norm": _Operator(
        ((33, _WIDTH), (33, _WIDTH), (_WIDTH,)), {"hidden_size": _WIDTH, "eps": _EPS}, _add_rms_norm
    ),
    "silu_and_mul": _Operator(((33, 2 * _WIDTH),), {"hidden_size": _WIDTH}, _silu_and_mul),
}


def _numeric(name: str, dtype: DType, bench: Bench) -> dict[str, float]:
    operator = _OPERATORS[name]
    kernel = bench.hook.operator_kernel(name=name, spec={**operator.spec, "dtype": dtype})
    if kernel is None:
        raise NotObservable(f"the backend has no {name}: the core's torch version runs")
    rng = bench.rng
    args = tuple(rounded(rng.standard_normal(shape), dtype) for shape in operator.arguments)
    truths = operator.formula(lambda x: x, args)
    naives = operator.formula(partial(rounded, dtype=dtype), args)
    results: Any = kernel(*(bench.tensor(values, dtype) for values in args))
    results = results if isinstance(results, tuple) else (results,)
    worst: Measure | None = None
    for got, truth, naive in zip(results, truths, naives, strict=False):
        measure = judge(bench.host(got)[:, None], Yardstick(truth[:, None], naive[:, None], dtype))
        if not measure.passed:
            raise CheckFailedError(
                f"{name} is wrong: error {measure.error:.3g}, allowed {measure.allowed:.3g}", None, measure.as_dict()
            )
        worst = measure if worst is None or measure.worst > worst.worst else worst
    return worst.as_dict() if worst is not None else {}


def _unknown(bench: Bench) -> None:
    hook = getattr(bench.hook, "operator_kernel", None)
    answer = None if hook is None else hook(name="an_operator_that_nobody_has", spec={})
    require(answer is None, f"operator_kernel gave {answer!r} for a name that nobody knows; right is None")


def cases() -> Iterator[Case]:
    yield from promised(
        "the contract's text", {"operator/unknown": Promise("None: the core's torch version runs", _unknown)}
    )
    for name in _OPERATORS:
        for dtype in DTYPES:
            yield Case(
                id=f"operator.{name}/{dtype}",
                title=f"the fused {name} is right",
                clause="a fused operator, or None: then the core's torch version runs",
                oracle="NumPy float64",
                body=partial(_numeric, name, dtype),
                profile=Profile.CORE,
                need=Need(dtype=dtype),
                params={"operator": name, "dtype": dtype},
                tolerance=POLICY,
            )
