"""What the backend promises, which way of computing fits which layer, and the reasons for what it refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from baseboard.contract import AttentionSpec, Capabilities, KVCacheSpec
from baseboard_ascend_npu import limits

BLOCK_SIZES: Final = (
    limits.PREFERRED_BLOCK,
    *(
        size
        for size in range(limits.BLOCK_MULTIPLE, limits.MAX_BLOCK + 1, limits.BLOCK_MULTIPLE)
        if size != limits.PREFERRED_BLOCK
    ),
)

CAPABILITIES: Final = Capabilities(
    dtypes=("bfloat16", "float16"),
    kv_dtypes=("auto",),
    block_sizes=BLOCK_SIZES,
    head_sizes=None,
    head_size_multiple=limits.HEAD_MULTIPLE,
    max_head_size=limits.MAX_HEAD,
    max_gqa_ratio=limits.MAX_GQA_RATIO,
    features=frozenset({"sliding_window", "sinks", "mixed_batch", "non_causal", "value_head_size", "async_swap"}),
    max_seqs=limits.MAX_SEQUENCES,
    pinned_host_memory=True,
    communicator="hccl",
)


class Way(Enum):
    """How a layer's attention is computed."""

    FUSED = "fused"  #: npu_fused_infer_attention_score for everything
    FUSED_WITH_SINKS = "fused with sinks"  #: its version 2
    PAGED_DECODE = "paged decode"  #: _npu_paged_attention for decodes, gathering for the rest
    GATHER = "gather"  #: keys and values gathered, attention in float32 out of torch's operators: slow, and right


@dataclass(frozen=True, slots=True)
class Available:
    """Which operators this installation has, and what is known of this chip."""

    sinks: bool
    paged: bool
    gqa_64: bool  #: heads of 64 may be shared in TND: not documented, ``npu-check`` finds it out


def choose_way(kv: KVCacheSpec, attention: AttentionSpec, available: Available) -> Way:
    """The fastest way that the documents allow for the layer."""
    if _fits_fused(kv, attention, available):
        if attention.sinks is None:
            return Way.FUSED
        if _fits_sinks(kv) and available.sinks:
            return Way.FUSED_WITH_SINKS
    plain = attention.sinks is None and attention.sliding_window is None
    if plain and available.paged and _fits_paged(kv):
        return Way.PAGED_DECODE
    return Way.GATHER


def _fits_fused(kv: KVCacheSpec, attention: AttentionSpec, available: Available) -> bool:
    shared = attention.num_heads != attention.num_kv_heads
    sizes = limits.SHARED_HEAD_SIZES if shared and not available.gqa_64 else limits.UNSHARED_HEAD_SIZES
    row = kv.num_kv_heads * kv.head_size
    return kv.head_size == kv.head_size_v and kv.head_size in sizes and row <= limits.MAX_ROW


def _fits_sinks(kv: KVCacheSpec) -> bool:
    # The sinks' dtype is documented as bfloat16 alone; with a float16 model they are better kept in float32.
    return kv.dtype == limits.SINK_DTYPE and kv.head_size_v <= limits.MAX_SINK_HEAD


def _fits_paged(kv: KVCacheSpec) -> bool:
    return kv.block_size <= limits.MAX_PAGED_BLOCK and max(kv.head_size, kv.head_size_v) <= limits.MAX_PAGED_HEAD


def most_blocks(spec: KVCacheSpec) -> int:
    """Blocks of which one layer's keys, or values, stay within what the operators address."""
    row = spec.block_size * spec.num_kv_heads * max(spec.head_size, spec.head_size_v)
    return limits.MAX_ELEMENTS // row


def reasons_against(kv: KVCacheSpec, attention: AttentionSpec) -> list[str]:
    """Why the pair cannot run, one sentence each; empty if it can."""
    return [*_storage(kv), *_agreement(kv, attention), *_heads(attention), *_options(attention)]


def _storage(kv: KVCacheSpec) -> Iterator[str]:
    if kv.dtype not in CAPABILITIES.dtypes:
        yield f"dtype {kv.dtype!r} is not supported, only {', '.join(CAPABILITIES.dtypes)}: the operators have no other"
    if kv.kv_dtype not in CAPABILITIES.kv_dtypes:
        yield f"KV dtype {kv.kv_dtype!r} is not supported, only auto"
    if kv.block_size not in BLOCK_SIZES:
        yield (
            f"block size {kv.block_size} is not supported, only multiples of {limits.BLOCK_MULTIPLE} up to "
            f"{limits.MAX_BLOCK}"
        )
    if kv.num_layers < 1:
        yield f"a group of {kv.num_layers} layers stores nothing, it must have at least 1"
    for name, size in (("head size", kv.head_size), ("value head size", kv.head_size_v)):
        if size % limits.HEAD_MULTIPLE or not 0 < size <= limits.MAX_HEAD:
            yield f"{name} {size} is not supported, only multiples of {limits.HEAD_MULTIPLE} up to {limits.MAX_HEAD}"
    yield from _positive("the KV cache's sliding window", kv.sliding_window)


def _agreement(kv: KVCacheSpec, attention: AttentionSpec) -> Iterator[str]:
    if attention.num_kv_heads != kv.num_kv_heads:
        yield f"the layer has {attention.num_kv_heads} KV heads, its cache has {kv.num_kv_heads}"
    if attention.head_size != kv.head_size:
        yield f"the layer has head size {attention.head_size}, its cache has {kv.head_size}"
    if kv.sliding_window is not None and (attention.sliding_window or math.inf) > kv.sliding_window > 0:
        yield f"the layer sees {attention.sliding_window or 'all'} keys, its cache keeps {kv.sliding_window}"


def _heads(attention: AttentionSpec) -> Iterator[str]:
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        yield f"{heads} query heads cannot share {kv_heads} KV heads evenly, it must be a multiple"
    elif heads // kv_heads > limits.MAX_GQA_RATIO:
        yield f"{heads // kv_heads} query heads share a KV head, the operators allow {limits.MAX_GQA_RATIO}"
    if heads > limits.MAX_HEADS:
        yield f"{heads} query heads are not supported, only up to {limits.MAX_HEADS}"
    if attention.sinks is not None:
        if len(attention.sinks) != heads:
            yield f"there are {len(attention.sinks)} sinks for {heads} query heads, it must be one each"
        if not all(map(math.isfinite, attention.sinks)):
            yield f"sinks must be finite numbers, not {attention.sinks}"


def _options(attention: AttentionSpec) -> Iterator[str]:
    if not math.isfinite(attention.scale):
        yield f"scale {attention.scale} is not a finite number"
    if attention.softcap is not None:
        yield f"softcap {attention.softcap} is not supported: no attention operator of the NPU has one"
    if attention.alibi_slopes is not None:
        yield "ALiBi is not supported: the NPU's paged attention operators take no bias"
    yield from _positive("sliding window", attention.sliding_window)


def _positive(name: str, value: int | None) -> Iterator[str]:
    if value is not None and value < 1:
        yield f"{name} {value} is not a positive number, leave it out to have none"
