"""What the backend promises."""

from __future__ import annotations

from typing import Final

from baseboard.contract import Capabilities, Feature
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
