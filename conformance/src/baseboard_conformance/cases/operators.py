"""``operator_kernel``: None, or right. The numeric cases are provisional: the core uses ``rms_norm`` alone so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import DType, OperatorKernel
from baseboard_conformance.attending import as_tensor_rows
from baseboard_conformance.bench import Bench, require, to_torch
from baseboard_conformance.case import Case, NotObservable, Profile
from baseboard_conformance.cases.attention import DTYPES
from baseboard_conformance.cases.simple import Promise, promised
from baseboard_conformance.claims import Need
from baseboard_conformance.guarded import Guarded, guard
from baseboard_conformance.numerics import Array, rounded
from baseboard_conformance.operator_formulas import FORMULAS
from baseboard_conformance.outcome import CheckFailedError
from baseboard_conformance.outside import listed
from baseboard_conformance.verdict import POLICY, Measure, Yardstick, judge

if TYPE_CHECKING:
    import torch

_EPS: Final = 1e-5
_TOKENS: Final = 33
_HEADS: Final = (4, 2)
_HEAD_SIZE: Final = 64
_POSITIONS: Final = 500

#: Draws an operator's arguments: float64 arrays hold numbers of the dtype; others are handed over as they are.
Draw = Callable[[np.random.Generator, DType], tuple[NDArray[Any], ...]]


@dataclass(frozen=True, slots=True)
class _Trial:
    """An operator for one place in a model, and arguments for it."""

    name: str
    spec: Mapping[str, Any]
    draw: Draw


def _rows(rng: np.random.Generator, dtype: DType, size: int) -> Array:
    """Rows of all magnitudes: in those of 0.001 an epsilon shows."""
    magnitude = np.array([1.0, 0.001, 8.0])[np.arange(_TOKENS) % 3, None]
    return rounded(magnitude * rng.standard_normal((_TOKENS, size)), dtype)


def _norm(size: int, rng: np.random.Generator, dtype: DType) -> tuple[Array, ...]:
    return _rows(rng, dtype, size), rounded(1 + 0.3 * rng.standard_normal(size), dtype)


def _add_norm(size: int, rng: np.random.Generator, dtype: DType) -> tuple[Array, ...]:
    x, weight = _norm(size, rng, dtype)
    return x, _rows(rng, dtype, size), weight


def _gate(size: int, rng: np.random.Generator, dtype: DType) -> tuple[Array, ...]:
    return (rounded(4 * rng.standard_normal((_TOKENS, 2 * size)), dtype),)


def _rotary(rotary_dim: int, rng: np.random.Generator, dtype: DType) -> tuple[NDArray[Any], ...]:
    query, key = (rounded(rng.standard_normal((_TOKENS, heads, _HEAD_SIZE)), dtype) for heads in _HEADS)
    frequencies = 10000.0 ** (-2 * np.arange(rotary_dim // 2) / rotary_dim)
    angles = np.arange(_POSITIONS)[:, None] * frequencies
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
    return query, key, rng.integers(0, _POSITIONS, _TOKENS), table


def _turning(rotary_dim: int, *, interleaved: bool) -> _Trial:
    spec = {"rotary_dim": rotary_dim, "interleaved": interleaved}
    return _Trial("rotary_embedding", spec, partial(_rotary, rotary_dim))


#: By the case's name, what is tried: an operator may decline some of it.
_TRIALS: Final[Mapping[str, tuple[_Trial, ...]]] = {
    "rms_norm": tuple(
        _Trial("rms_norm", {"hidden_size": size, "eps": _EPS}, partial(_norm, size)) for size in (96, 576)
    ),
    "add_rms_norm": tuple(
        _Trial("add_rms_norm", {"hidden_size": size, "eps": _EPS}, partial(_add_norm, size)) for size in (96, 576)
    ),
    "silu_and_mul": tuple(_Trial("silu_and_mul", {}, partial(_gate, size)) for size in (96, 1536)),
    "rotary_embedding/halves": (_turning(64, interleaved=False), _turning(32, interleaved=False)),
    "rotary_embedding/interleaved": (_turning(64, interleaved=True), _turning(32, interleaved=True)),
}


def _numeric(name: str, dtype: DType, bench: Bench) -> dict[str, float]:
    measures: list[Measure] = []
    for trial in _TRIALS[name]:
        kernel = bench.hook.operator_kernel(name=trial.name, spec={**trial.spec, "dtype": dtype})
        if kernel is not None:
            measures += _tried(trial, dtype, bench, kernel)
    if not measures:
        raise NotObservable(f"the backend has no {name.replace('/', ', ')}: the core's torch version runs")
    return max(measures, key=lambda measure: measure.worst).as_dict()


def _tried(trial: _Trial, dtype: DType, bench: Bench, kernel: OperatorKernel) -> list[Measure]:
    """Rows without gaps, watched on all sides; then the same rows as parts of wider ones."""
    arguments = trial.draw(bench.rng, dtype)
    tensors = [_on_device(bench, values, dtype) for values in arguments]
    guards = [guard(bench, f"argument {number} of {trial.name}", tensor) for number, tensor in enumerate(tensors)]
    measures = _judged(trial, dtype, arguments, _called(bench, kernel, [each.inner for each in guards]))
    _check_untouched(guards)
    if trial.name == "rotary_embedding":
        tensors[:2] = [as_tensor_rows(tensor) for tensor in tensors[:2]]
    elif trial.name != "silu_and_mul":
        tensors[:-1] = [_wide(tensor) for tensor in tensors[:-1]]
    return measures + _judged(trial, dtype, arguments, _called(bench, kernel, tensors))


def _called(bench: Bench, kernel: OperatorKernel, tensors: list[torch.Tensor]) -> list[Array]:
    answer: object = kernel(*tensors)
    results = cast("tuple[torch.Tensor, ...]", answer if isinstance(answer, tuple) else (answer,))
    wrong = [str(result.dtype) for result in results if result.dtype != tensors[0].dtype]
    require(not wrong, f"the operator gave {listed(wrong)}; right is the dtype of its argument, {tensors[0].dtype}")
    return [bench.host(result) for result in results]


def _judged(trial: _Trial, dtype: DType, arguments: tuple[NDArray[Any], ...], results: list[Array]) -> list[Measure]:
    formula = FORMULAS[trial.name]
    truths = formula(lambda x: x, trial.spec, arguments)
    naives = formula(partial(rounded, dtype=dtype), trial.spec, arguments)
    shapes, right = [list(result.shape) for result in results], [list(truth.shape) for truth in truths]
    require(shapes == right, f"{trial.name} gave results of shapes {shapes}; right is {right}")
    measures = [
        judge(_as_rows(got), Yardstick(_as_rows(truth), _as_rows(naive), dtype))
        for got, truth, naive in zip(results, truths, naives, strict=True)
    ]
    for number, measure in enumerate(measures):
        if not measure.passed:
            raise CheckFailedError(
                f"result {number} of {trial.name} with {dict(trial.spec)} is wrong in row {measure.token}: "
                f"largest error {measure.error:.3g} where {measure.allowed:.3g} is allowed, largest relative row error "
                f"{measure.row_error:.3g} where {measure.row_allowed:.3g} is allowed",
                None,
                measure.as_dict(),
            )
    return measures


def _check_untouched(guards: list[Guarded]) -> None:
    for each in guards:
        each.check_bands()
        each.check_unchanged()


def _as_rows(values: Array) -> Array:
    return values.reshape(-1, 1, values.shape[-1])


def _on_device(bench: Bench, values: NDArray[Any], dtype: DType) -> torch.Tensor:
    if values.dtype == np.float64:
        return bench.tensor(values, dtype)
    return to_torch(values).to(bench.hook.torch_device())


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return as_tensor_rows(tensor[:, None])[:, 0]


def _unknown(bench: Bench) -> None:
    hook = getattr(bench.hook, "operator_kernel", None)
    answer = None if hook is None else hook(name="an_operator_that_nobody_has", spec={})
    require(answer is None, f"operator_kernel gave {answer!r} for a name that nobody knows; right is None")


def cases() -> Iterator[Case]:
    yield from promised(
        "the contract's text", {"operator/unknown": Promise("None: the core's torch version runs", _unknown)}
    )
    for name in _TRIALS:
        for dtype in DTYPES:
            yield Case(
                id=f"operator.{name}/{dtype}",
                title=f"the fused {name} is right, whatever the strides, and leaves its arguments alone",
                clause="a fused operator gives new tensors by its page's formula; or None: the core's version runs",
                oracle="NumPy float64",
                body=partial(_numeric, name, dtype),
                profile=Profile.CORE,
                need=Need(dtype=dtype),
                params={"operator": name, "dtype": dtype},
                tolerance=POLICY,
            )
