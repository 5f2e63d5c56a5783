"""What did the backend compute instead? A wrong result is compared with the results of well-known mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import AttentionSpec
from baseboard_conformance.numerics import Array
from baseboard_conformance.oracle import Tensors, attention
from baseboard_conformance.problem import Problem
from baseboard_conformance.verdict import Yardstick, judge

#: Errors this many times the allowed one are more than coarse rounding makes.
_ROUNDING: Final = 4.0

Method = Callable[[Tensors, NDArray[np.bool_]], Array]


@dataclass(frozen=True, slots=True)
class Mistake:
    """A way to misread the contract; ``method`` computes what then comes out."""

    words: str
    method: Method


def diagnose(problem: Problem, got: Array, against: Yardstick) -> list[str]:
    """The mistakes that explain ``got``; where none does, which sequences and heads are wrong."""
    if not np.isfinite(got).all():
        return ["diagnosis: NaN or infinity came through; slots that no sequence owns must never reach an output"]
    if judge(got, against).worst < _ROUNDING:
        return ["diagnosis: the formula is right, rounding is too coarse; keep logits, softmax and sums in float32"]
    found: list[str] = []
    for mistake in _mistakes(problem):
        explained = problem.solve(mistake.method)
        # The allowance stays that of the truth: a mistake's result is no yardstick.
        explains = judge(got - explained + against.truth, against).worst <= 2
        if explains and judge(explained, against).worst > _ROUNDING:
            found.append(f"diagnosis: this is what comes out when {mistake.words}")
    return found or [_pattern(problem, got, against)]


def _pattern(problem: Problem, got: Array, against: Yardstick) -> str:
    """Which heads and lengths are wrong: where to look."""
    wrong = np.abs(got - against.truth).max(axis=2) > judge(got, against).allowed
    heads = np.flatnonzero(wrong.any(axis=0)).tolist()
    lengths = sorted({problem.place(int(token))[1] + 1 for token in np.flatnonzero(wrong.any(axis=1))})
    total = problem.geometry.attention.num_heads
    which = "all heads" if len(heads) == total else f"heads {heads[:12]} of {total}"
    return (
        f"diagnosis: no common mistake fits; wrong are {which}, for queries that see this many tokens: {lengths[:12]}"
    )


def _mistakes(problem: Problem) -> Iterator[Mistake]:
    spec, size = problem.geometry.attention, problem.geometry.kv.block_size
    for words, mask in _MASKS.items():
        yield Mistake(words, partial(_masked, spec, mask))
    yield Mistake("the last block of each sequence is left out", partial(_masked, spec, partial(_no_last_block, size)))
    yield Mistake("the first block of each sequence is left out", partial(_masked, spec, partial(_no_first, size)))
    for words, changed in _specs(spec):
        yield Mistake(words, partial(_with_spec, changed))
    if 1 < spec.num_kv_heads < spec.num_heads:
        yield Mistake("query head h reads KV head h % Hkv; right is h // (H // Hkv)", partial(_interleaved, spec))
    if spec.sliding_window is not None:
        for shift in (-1, 1):
            right = f"right are {spec.sliding_window}, the query's own included"
            words = f"the window shows {spec.sliding_window + shift} keys; {right}"
            yield Mistake(words, partial(_window, spec, spec.sliding_window + shift))
        yield Mistake("the sliding window is ignored", partial(_window, spec, None))


def _specs(spec: AttentionSpec) -> Iterator[tuple[str, AttentionSpec]]:
    yield "the scale is left out", replace(spec, scale=1.0)
    yield (
        "the scale is one over the root of the head size, whatever the spec says",
        replace(spec, scale=spec.head_size**-0.5),
    )
    yield "the scale is applied twice", replace(spec, scale=spec.scale**2)
    if spec.softcap is not None:
        yield "the softcap is ignored", replace(spec, softcap=None)
        yield (
            "the softcap is applied to logits that are not scaled yet",
            replace(spec, softcap=spec.softcap * spec.scale, scale=spec.scale),
        )
    if spec.alibi_slopes is not None:
        yield "ALiBi is ignored", replace(spec, alibi_slopes=None)
        yield "ALiBi has the wrong sign", replace(spec, alibi_slopes=tuple(-s for s in spec.alibi_slopes))
    if spec.sinks is not None:
        yield "the sinks are ignored", replace(spec, sinks=None)
        yield "the sinks are scaled like logits", replace(spec, sinks=tuple(s * spec.scale for s in spec.sinks))


def _with_spec(spec: AttentionSpec, tensors: Tensors, seen: NDArray[np.bool_]) -> Array:
    return attention(tensors, spec, seen)


def _masked(
    spec: AttentionSpec,
    mask: Callable[[NDArray[np.bool_]], NDArray[np.bool_]],
    tensors: Tensors,
    seen: NDArray[np.bool_],
) -> Array:
    masked = mask(seen)
    # Whoever makes such a mistake seldom divides by zero: a query that would see nothing sees what it should.
    blind = ~masked.any(axis=1, keepdims=True)
    return attention(tensors, spec, np.where(blind, seen, masked))


def _interleaved(spec: AttentionSpec, tensors: Tensors, seen: NDArray[np.bool_]) -> Array:
    heads = np.arange(spec.num_heads) % spec.num_kv_heads
    return attention(
        Tensors(tensors.query, tensors.key[:, heads], tensors.value[:, heads]),
        replace(spec, num_kv_heads=spec.num_heads),
        seen,
    )


def _window(spec: AttentionSpec, window: int | None, tensors: Tensors, seen: NDArray[np.bool_]) -> Array:
    num_queries, num_keys = len(seen), len(tensors.key)
    p = np.arange(num_keys - num_queries, num_keys)[:, None]
    j = np.arange(num_keys)[None, :]
    return attention(tensors, spec, (j <= p) & (j > p - (num_keys if window is None else window)))


def _no_own_key(seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    own = seen.shape[1] - seen.shape[0] + np.arange(len(seen))
    cut = seen.copy()
    cut[np.arange(len(seen)), own] = False
    return cut


def _future_key(seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    own = seen.shape[1] - seen.shape[0] + np.arange(len(seen))
    more = seen.copy()
    more[np.arange(len(seen)), np.minimum(own + 1, seen.shape[1] - 1)] = True
    return more


def _all_keys(seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    own = seen.shape[1] - seen.shape[0] + np.arange(len(seen))
    return seen | (np.arange(int(seen.shape[1]))[None, :] > own[:, None])


def _top_left(seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    queries, keys = np.arange(len(seen)), np.arange(int(seen.shape[1]))
    return keys[None, :] <= queries[:, None]


def _only_chunk(seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    cut = seen.copy()
    cut[:, : seen.shape[1] - seen.shape[0]] = False
    return cut


def _no_first(count: int, seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    cut = seen.copy()
    cut[:, :count] = False
    return cut


def _no_last_block(size: int, seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    cut = seen.copy()
    cut[:, (seen.shape[1] - 1) // size * size :] = False
    return cut


_MASKS: Final[dict[str, Callable[[NDArray[np.bool_]], NDArray[np.bool_]]]] = {
    "a query does not see its own key (the causal mask is off by one)": _no_own_key,
    "a query sees one key of the future (the causal mask is off by one)": _future_key,
    "there is no causal mask": _all_keys,
    "the causal mask is aligned top-left; right is bottom-right": _top_left,
    "a chunk sees only its own tokens, not those of earlier chunks": _only_chunk,
    "the first key of each sequence is left out": partial(_no_first, 1),
}
