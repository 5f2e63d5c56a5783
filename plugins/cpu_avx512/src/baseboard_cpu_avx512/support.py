"""What the backend can do."""

from __future__ import annotations

from typing import Final

from baseboard.contract import Capabilities

CAPABILITIES: Final = Capabilities(
    dtypes=("float32", "bfloat16", "float16"),
    kv_dtypes=("auto", "int8"),
    block_sizes=(32, 16, 64, 128, 8, 256),
    head_sizes=None,
    head_size_multiple=8,
    max_head_size=256,
    max_gqa_ratio=None,
    features=frozenset(
        {"sliding_window", "softcap", "alibi", "sinks", "mixed_batch", "non_causal", "value_head_size", "async_swap"}
    ),
    max_seqs=None,
    pinned_host_memory=False,
    communicator="gloo",
)
