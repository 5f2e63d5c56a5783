"""What the documents leave open, asked of an open backend; and every way of computing, tried once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from baseboard.contract import AttentionSpec, BaseboardError
from baseboard_ascend_npu.acl_copy import BatchCopier, BatchNotSupported
from baseboard_ascend_npu.backend import AscendBackend
from baseboard_ascend_npu.graphs import can_capture
from baseboard_ascend_npu.support import Way
from baseboard_ascend_npu.trials import SHARED, Trial

#: Relative to the largest value: rounding of 16-bit inputs and results.
_TOLERANCE: Final = 2e-2
_SHARED_128: Final = AttentionSpec(8, 2, 128, 0.09)
_SHARED_64: Final = AttentionSpec(4, 2, 64, 0.125)
_OWN_64: Final = AttentionSpec(4, 4, 64, 0.125)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer."""

    question: str
    answer: str
    failed: bool = False


def findings(backend: AscendBackend) -> Iterator[Finding]:
    """Everything there is to ask, one after the other; open questions first."""
    trial, operators = Trial(backend, _SHARED_128), backend.kernels.operators
    yield _band(backend)
    yield _shared_64(backend)
    yield _batched_copies(backend)
    yield _agrees("fused attention, a prefix shared in a small pool", lambda: trial.difference(Way.FUSED, SHARED))
    yield _layouts(trial)
    if can_capture():
        yield _agrees("captured decode steps, fused", lambda: trial.replayed_difference(Way.FUSED))
        if operators.paged is not None:
            paged = Trial(backend, _SHARED_64)
            yield _agrees("captured decode steps, paged", lambda: paged.replayed_difference(Way.PAGED_DECODE))
    yield _way(backend, "fused attention, heads of 128, 8 on 2", Way.FUSED, _SHARED_128)
    yield _way(backend, "fused attention, heads of 64, not shared", Way.FUSED, _OWN_64)
    yield _way(backend, "fused attention in a window of 32", Way.FUSED, AttentionSpec(8, 2, 128, 0.09, 32))
    if operators.fused_with_sinks is not None:
        sinks = AttentionSpec(4, 2, 128, 0.09, sinks=(0.5, 1.0, -1.0, 0.0))
        yield _way(backend, "fused attention with sinks", Way.FUSED_WITH_SINKS, sinks)
    if operators.paged is not None:
        yield _way(backend, "paged decodes, heads of 80", Way.PAGED_DECODE, AttentionSpec(4, 2, 80, 0.11))


def _band(backend: AscendBackend) -> Finding:
    question = "a window of W keys is pre_tokens"
    offset = backend.kernels.band
    if offset is None:
        return Finding(question, "neither W nor W - 1: windows are gathered", failed=True)
    return Finding(question, "W - 1" if offset == -1 else "W")


def _shared_64(backend: AscendBackend) -> Finding:
    question = "fused attention with shared heads of 64"
    try:
        difference = Trial(backend, _SHARED_64).difference(Way.FUSED)
    except RuntimeError as error:
        return Finding(question, f"refused, leave gqa_64=no: {_first_line(error)}")
    if difference > _TOLERANCE:
        return Finding(question, f"accepted but wrong by {difference:.1%}, leave gqa_64=no")
    return Finding(question, "works: open the backend with the option gqa_64=yes, and tell the project")


def _batched_copies(backend: AscendBackend) -> Finding:
    question = "batched copies"
    try:
        BatchCopier(backend.kernels.device.index)
    except BatchNotSupported as error:
        return Finding(question, f"not there, swaps are loops: {error}")
    if Trial(backend, _SHARED_128).moved_bytes_differ():
        return Finding(question, "blocks come back changed", failed=True)
    return Finding(question, "aclrtMemcpyBatchAsync is there, and blocks come back as they were")


def _layouts(trial: Trial) -> Finding:
    question = "fused attention over the other layout"
    try:
        seconds = trial.seconds_by_layout()
    except RuntimeError as error:
        return Finding(question, f"refused: {_first_line(error)}")
    return Finding(question, f"{1e6 * seconds.heads:.0f} us a call, over the one that is used {1e6 * seconds.rows:.0f}")


def _way(backend: AscendBackend, question: str, way: Way, attention: AttentionSpec) -> Finding:
    return _agrees(question, lambda: Trial(backend, attention).difference(way))


def _agrees(question: str, difference: Callable[[], float]) -> Finding:
    try:
        found = difference()
    except (RuntimeError, BaseboardError) as error:
        return Finding(question, _first_line(error), failed=True)
    return Finding(question, f"differs from float32 by {found:.2%}", failed=not found <= _TOLERANCE)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
