"""``python -m baseboard_ascend_npu.check``: asks a real NPU what the documents leave open, and tries every way once.

Exits with 0 when the ways that the backend uses agree with attention computed in float32 from torch's operators.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

import baseboard_ascend_npu as plugin
from baseboard.contract import AttentionSpec, KVCacheSpec, StepBatch
from baseboard_ascend_npu.acl_copy import BatchCopier, BatchNotSupported
from baseboard_ascend_npu.backend import AscendBackend
from baseboard_ascend_npu.support import Way

#: Relative to the largest value: rounding of 16-bit inputs and results.
_TOLERANCE: Final = 2e-2
_QUERIES: Final = (1, 1, 50)
_LENGTHS: Final = (200, 129, 180)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer."""

    question: str
    answer: str
    failed: bool = False


def main() -> int:
    """Print what was found; the exit code."""
    devices = plugin.probe_devices()
    usable = [device for device in devices if device.available]
    if not usable:
        print(f"no NPU to ask: {devices[0].reason}")
        return 2
    backend = plugin.open_backend(usable[0], {})
    assert isinstance(backend, AscendBackend)
    failed = False
    for finding in findings(backend):
        failed = failed or finding.failed
        print(f"{'FAILED  ' if finding.failed else ''}{finding.question}: {finding.answer}")
    backend.close()
    return int(failed)


def findings(backend: AscendBackend) -> Iterator[Finding]:
    """Everything there is to ask, one after the other."""
    yield _band(backend)
    yield _shared_64(backend)
    yield _batched_copies(backend)
    operators = backend.kernels.operators
    yield _way(backend, "fused attention, heads of 128, 8 on 2", Way.FUSED, AttentionSpec(8, 2, 128, 0.09))
    yield _way(backend, "fused attention, heads of 64, not shared", Way.FUSED, AttentionSpec(4, 4, 64, 0.125))
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
    attention = AttentionSpec(4, 2, 64, 0.125)
    try:
        difference = _difference(backend, Way.FUSED, attention)
    except RuntimeError as error:
        return Finding(question, f"refused, leave gqa_64=no: {str(error).splitlines()[0]}")
    if difference > _TOLERANCE:
        return Finding(question, f"accepted but wrong by {difference:.1%}, leave gqa_64=no")
    return Finding(question, "works: open the backend with the option gqa_64=yes, and tell the project")


def _batched_copies(backend: AscendBackend) -> Finding:
    try:
        BatchCopier(backend.kernels.device.index)
    except BatchNotSupported as error:
        return Finding("batched copies", f"not there, swaps are loops: {error}")
    return Finding("batched copies", "aclrtMemcpyBatchAsync is there")


def _way(backend: AscendBackend, question: str, way: Way, attention: AttentionSpec) -> Finding:
    try:
        difference = _difference(backend, way, attention)
    except RuntimeError as error:
        return Finding(question, str(error).splitlines()[0], failed=True)
    return Finding(question, f"differs from float32 by {difference:.2%}", failed=not difference <= _TOLERANCE)


def _difference(backend: AscendBackend, way: Way, attention: AttentionSpec) -> float:
    """The largest difference between ``way`` and gathering, relative to the largest value."""
    size, heads = attention.head_size, attention.num_kv_heads
    kv = KVCacheSpec(1, heads, size, size, "bfloat16", 128)
    batch = _batch(kv.block_size)
    cache = backend.allocate_kv_cache(kv, 2 * len(_LENGTHS) + 1)
    generator = torch.Generator().manual_seed(0)
    device = backend.kernels.device
    for plane in cache.planes:
        rows = torch.randn(plane.shape[0], plane.shape[1] // 2, generator=generator).to(torch.bfloat16)
        plane.view(torch.bfloat16).copy_(rows.to(device))
    query = torch.randn(batch.num_tokens, attention.num_heads, size, generator=generator).to(torch.bfloat16).to(device)
    metadata = backend.build_attention_metadata(batch, cache)
    results = [
        backend.kernels.make(each, attention).attend(query, cache.layer(0), metadata).cpu().float()
        for each in (way, Way.GATHER)
    ]
    return float((results[0] - results[1]).abs().max() / results[1].abs().max())


def _batch(block_size: int) -> StepBatch:
    """Two decodes and a chunk, two blocks each."""
    counts, lengths = np.array(_QUERIES), np.array(_LENGTHS, np.int32)
    tables = np.arange(1, 2 * len(lengths) + 1, dtype=np.int32).reshape(-1, 2)
    rows = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    positions = np.arange(ends[-1]) - np.repeat(ends, counts) + np.repeat(lengths, counts)
    return StepBatch(
        query_start_loc=np.concatenate([[0], ends]).astype(np.int32),
        seq_lens=lengths,
        block_tables=tables,
        slot_mapping=tables[rows, positions // block_size].astype(np.int64) * block_size + positions % block_size,
        positions=positions.astype(np.int64),
        num_decodes=sum(count == 1 for count in _QUERIES),
        max_query_len=max(_QUERIES),
        max_seq_len=max(_LENGTHS),
    )


if __name__ == "__main__":
    sys.exit(main())
