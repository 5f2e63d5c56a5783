"""Why a pair of specs cannot run on a backend, as far as its capabilities say so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from baseboard.contract import AttentionSpec, Capabilities, KVCacheSpec


def reasons_against(promise: Capabilities, kv: KVCacheSpec, attention: AttentionSpec) -> list[str]:
    """One sentence for each thing that ``promise`` does not hold or the specs contradict; empty if there is none.

    It knows types, sizes and numbers. Features that a backend does not have are its own to refuse.
    """
    return [*_storage(promise, kv), *_agreement(kv, attention), *_heads(attention), *_options(attention)]


def _storage(promise: Capabilities, kv: KVCacheSpec) -> Iterator[str]:
    if kv.dtype not in promise.dtypes:
        yield f"dtype {kv.dtype!r} is not supported, only {_listed(promise.dtypes)}"
    if kv.kv_dtype not in promise.kv_dtypes:
        yield f"KV dtype {kv.kv_dtype!r} is not supported, only {_listed(promise.kv_dtypes)}"
    if kv.block_size not in promise.block_sizes:
        yield f"block size {kv.block_size} is not supported, only {_listed(sorted(promise.block_sizes))}"
    if kv.num_layers < 1:
        yield f"a group of {kv.num_layers} layers stores nothing, it must have at least 1"
    step, most = promise.head_size_multiple, promise.max_head_size
    allowed = f"1 to {most}" if step == 1 else f"multiples of {step} from {step} to {most}"
    for name, size in (("head size", kv.head_size), ("value head size", kv.head_size_v)):
        if size % step or not step <= size <= most:
            yield f"{name} {size} is not supported, only {allowed}"
    yield from _positive("the KV cache's sliding window", kv.sliding_window)


def _agreement(kv: KVCacheSpec, attention: AttentionSpec) -> Iterator[str]:
    if attention.num_kv_heads != kv.num_kv_heads:
        yield f"the layer has {attention.num_kv_heads} KV heads, its cache has {kv.num_kv_heads}"
    if attention.head_size != kv.head_size:
        yield f"the layer has head size {attention.head_size}, its cache has {kv.head_size}"
    if kv.sliding_window is not None and (attention.sliding_window or math.inf) > kv.sliding_window > 0:
        # Blocks that slid out of the cache's window belong to others by now.
        yield f"the layer sees {attention.sliding_window or 'all'} keys, its cache keeps {kv.sliding_window}"


def _heads(attention: AttentionSpec) -> Iterator[str]:
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    if kv_heads < 1 or heads < 1 or heads % kv_heads:
        yield f"{heads} query heads cannot share {kv_heads} KV heads evenly, it must be a multiple"
    for name, values in (("ALiBi slopes", attention.alibi_slopes), ("sinks", attention.sinks)):
        if values is None:
            continue
        if len(values) != heads:
            yield f"there are {len(values)} {name} for {heads} query heads, it must be one each"
        if not all(map(math.isfinite, values)):
            yield f"{name} must be finite numbers, not {values}"


def _options(attention: AttentionSpec) -> Iterator[str]:
    if not math.isfinite(attention.scale):
        yield f"scale {attention.scale} is not a finite number"
    yield from _positive("sliding window", attention.sliding_window)
    yield from _positive("softcap", attention.softcap)


def _positive(name: str, value: float | None) -> Iterator[str]:
    if value is not None and not 0 < value < math.inf:
        yield f"{name} {value} is not a positive number, leave it out to have none"


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
