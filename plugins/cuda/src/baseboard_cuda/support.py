"""What the backend promises, and the reasons for what it refuses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from baseboard.contract import AttentionSpec, Capabilities, Feature, KVCacheSpec
from baseboard_cuda.chip import Chip
from baseboard_cuda.options import Options

_FEATURES: Final[frozenset[Feature]] = frozenset(
    {"sliding_window", "softcap", "alibi", "sinks", "mixed_batch", "non_causal", "value_head_size"}
)
_ASYNCHRONOUS: Final[frozenset[Feature]] = frozenset({"async_swap"})


def capabilities(chip: Chip, options: Options) -> Capabilities:
    """Sizes of any kind are padded in the kernels; block sizes are those that are tested."""
    sizes = (16, 32, 64, 128, 256, 8, 4, 2, 1)
    return Capabilities(
        dtypes=chip.dtypes,
        kv_dtypes=("auto", "fp8_e4m3"),
        # Preferred first: that engine takes no other.
        block_sizes=tuple(sorted(sizes, reverse=True)) if options.attention == "varlen" else sizes,
        head_sizes=None,
        head_size_multiple=1,
        max_head_size=max(key.head_size for key in chip.tiles.tiles),
        max_gqa_ratio=None,
        features=_FEATURES | _ASYNCHRONOUS if chip.asynchronous else _FEATURES,
        max_seqs=None,
        pinned_host_memory=chip.asynchronous,
        communicator=chip.communicator,
    )


def reasons_against(promise: Capabilities, kv: KVCacheSpec, attention: AttentionSpec) -> list[str]:
    """Why the pair cannot run, one sentence each; empty if it can."""
    return [*_storage(promise, kv), *_agreement(kv, attention), *_heads(attention), *_numbers(kv, attention)]


def _storage(promise: Capabilities, kv: KVCacheSpec) -> Iterator[str]:
    yield from _among("dtype", kv.dtype, promise.dtypes)
    yield from _among("KV dtype", kv.kv_dtype, promise.kv_dtypes)
    yield from _among("block size", kv.block_size, sorted(promise.block_sizes))
    if kv.num_layers < 1:
        yield f"a group of {kv.num_layers} layers stores nothing, it must have at least 1"
    for name, size in (("head size", kv.head_size), ("value head size", kv.head_size_v)):
        if not 1 <= size <= promise.max_head_size:
            yield f"{name} {size} is not supported, only 1 to {promise.max_head_size}"


def _agreement(kv: KVCacheSpec, attention: AttentionSpec) -> Iterator[str]:
    if attention.num_kv_heads != kv.num_kv_heads:
        yield f"the layer has {attention.num_kv_heads} KV heads, its cache has {kv.num_kv_heads}"
    if attention.head_size != kv.head_size:
        yield f"the layer has head size {attention.head_size}, its cache has {kv.head_size}"
    kept, seen = kv.sliding_window, attention.sliding_window
    if kept is not None and (seen is None or seen > kept):
        yield f"the layer sees {seen or 'all'} keys, but its cache keeps {kept}"


def _heads(attention: AttentionSpec) -> Iterator[str]:
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    if kv_heads < 1 or heads < 1 or heads % kv_heads:
        yield f"{heads} query heads cannot share {kv_heads} KV heads evenly, it must be a multiple"
    for name, values in (("ALiBi slopes", attention.alibi_slopes), ("sinks", attention.sinks)):
        if values is not None and len(values) != heads:
            yield f"there are {len(values)} {name} for {heads} query heads, it must be one each"
        if values is not None and not all(map(math.isfinite, values)):
            yield f"{name} must be finite numbers, not {values}"


def _numbers(kv: KVCacheSpec, attention: AttentionSpec) -> Iterator[str]:
    if not math.isfinite(attention.scale):
        yield f"scale {attention.scale} is not a finite number"
    optional = (
        ("sliding window", attention.sliding_window),
        ("the KV cache's sliding window", kv.sliding_window),
        ("softcap", attention.softcap),
    )
    for name, value in optional:
        if value is not None and not 0 < value < math.inf:
            yield f"{name} {value} is not a positive number, leave it out to have none"


def _among(name: str, value: object, allowed: Iterable[object]) -> Iterator[str]:
    if value not in allowed:
        yield f"{name} {value} is not supported, only {', '.join(map(str, allowed))}"
