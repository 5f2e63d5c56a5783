"""What the reference backend can do."""

from __future__ import annotations

import torch

from baseboard.backends.reference.device import can_pin, communicator
from baseboard.contract import Capabilities


def capabilities(device: torch.device) -> Capabilities:
    """The promise made on ``device``."""
    return Capabilities(
        dtypes=("float32", "bfloat16", "float16"),
        kv_dtypes=("auto",),
        block_sizes=(16, 32, 8, 64, 128, 256, 4, 2, 1),
        head_sizes=None,
        head_size_multiple=1,
        max_head_size=1024,
        max_gqa_ratio=None,
        features=frozenset(
            {"sliding_window", "softcap", "alibi", "sinks", "mixed_batch", "non_causal", "value_head_size"}
        ),
        max_seqs=None,
        pinned_host_memory=can_pin(device),
        communicator=communicator(device),
    )
