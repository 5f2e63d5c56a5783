"""What IPEX's kernels can do, each part of it checked against attention in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from baseboard.contract import AttentionSpec, Capabilities, KVCacheSpec
from baseboard.kit.support import reasons_against

#: Blocks of 12, 24, 48, 96, 256 and 512 tokens corrupt the heap when decoding: these here were checked not to.
CAPABILITIES: Final = Capabilities(
    dtypes=("float32", "bfloat16", "float16"),
    kv_dtypes=("auto",),
    block_sizes=(32, 16, 64, 128, 8),
    head_sizes=None,
    head_size_multiple=8,
    max_head_size=256,
    max_gqa_ratio=None,
    features=frozenset({"sliding_window", "softcap", "mixed_batch", "async_swap"}),
    max_seqs=None,
    pinned_host_memory=False,
    communicator="gloo",
)


def reasons(kv: KVCacheSpec, attention: AttentionSpec) -> list[str]:
    """One sentence for each thing that IPEX cannot do; empty: it can."""
    return [*reasons_against(CAPABILITIES, kv, attention), *_missing(kv, attention)]


def _missing(kv: KVCacheSpec, attention: AttentionSpec) -> Iterator[str]:
    if attention.alibi_slopes is not None:
        yield "ALiBi is not supported by kernels='ipex': IPEX has it for decoding only, take kernels='own'"
    if attention.sinks is not None:
        yield "sinks are not supported by kernels='ipex': IPEX has none, take kernels='own'"
    if kv.head_size_v != kv.head_size:
        yield (
            f"value head size {kv.head_size_v} beside head size {kv.head_size} is not supported by kernels='ipex': "
            "IPEX reads values as it reads keys, take kernels='own'"
        )
