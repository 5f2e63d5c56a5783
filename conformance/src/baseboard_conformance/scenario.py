"""An attention case as data, and the concrete sizes it takes on one backend."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from baseboard.contract import AttentionSpec, Capabilities, DType, Feature, KVCacheSpec, KVDType
from baseboard_conformance.claims import Need, preferred_head_size, preferred_ratio
from baseboard_conformance.layouts import LAYOUTS, MIXED, Layout, fitted


@dataclass(frozen=True, slots=True)
class Scenario:
    """None of a size: whatever the backend prefers."""

    dtype: DType
    layout: str
    head_size: int | None = None
    block_size: int | None = None
    ratio: int | None = None
    num_kv_heads: int = 2
    head_size_v: int | None = None  #: None: as ``head_size``
    scale: float | None = None  #: None: one over the root of the head size
    window: int | None = None
    softcap: float | None = None
    alibi: str | None = None  #: name of a set of slopes, see :func:`slopes`
    sinks: bool = False
    causal: bool = True
    kv_dtype: KVDType = "auto"

    @property
    def need(self) -> Need:
        wanted: dict[Feature, bool] = {
            "sliding_window": self.window is not None,
            "softcap": self.softcap is not None,
            "alibi": self.alibi is not None,
            "sinks": self.sinks,
            "non_causal": not self.causal,
            "value_head_size": self.head_size_v is not None,
            "mixed_batch": self.layout in MIXED,
        }
        features: frozenset[Feature] = frozenset(name for name, on in wanted.items() if on)
        return Need(self.dtype, self.kv_dtype, self.block_size, self.head_size, self.ratio, None, features)

    def as_dict(self) -> dict[str, Any]:
        """What differs from the defaults: the case's parameters for manifest and report."""
        default = asdict(Scenario(self.dtype, self.layout))
        return {
            name: value for name, value in asdict(self).items() if name in {"dtype", "layout"} or value != default[name]
        }


@dataclass(frozen=True, slots=True)
class Geometry:
    """A scenario in numbers."""

    attention: AttentionSpec
    kv: KVCacheSpec
    layout: Layout
    causal: bool = True

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool: the null block, those of the sequences, and a few that nobody owns."""
        return (
            5 + self.layout.shared_blocks + sum(blocks_of(row.seq_len, self.kv.block_size) for row in self.layout.rows)
        )

    def with_layout(self, layout: Layout) -> Geometry:
        return replace(self, layout=layout)


def blocks_of(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def geometry(scenario: Scenario, can: Capabilities) -> Geometry:
    """The sizes for a backend; also for one that does not declare them: then it is what it must refuse."""
    head_size = scenario.head_size or preferred_head_size(can)
    kv_heads = scenario.num_kv_heads
    heads = kv_heads * (scenario.ratio or preferred_ratio(can))
    block_size = scenario.block_size or can.block_sizes[0]
    value_size = head_size if scenario.head_size_v is None else scenario.head_size_v
    attention = AttentionSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        scale=head_size**-0.5 if scenario.scale is None else scenario.scale,
        sliding_window=scenario.window,
        softcap=scenario.softcap,
        alibi_slopes=None if scenario.alibi is None else slopes(scenario.alibi, heads),
        sinks=tuple(-1.0 + 3.0 * h / heads for h in range(heads)) if scenario.sinks else None,
    )
    kv = KVCacheSpec(
        num_layers=1,
        num_kv_heads=kv_heads,
        head_size=head_size,
        head_size_v=value_size,
        dtype=scenario.dtype,
        block_size=block_size,
        kv_dtype=scenario.kv_dtype,
        sliding_window=scenario.window,
    )
    return Geometry(attention, kv, fitted(LAYOUTS[scenario.layout](block_size), can.max_seqs), scenario.causal)


def slopes(name: str, heads: int) -> tuple[float, ...]:
    """``geometric``: powers of two as in the ALiBi paper. ``distinct``: no two heads alike, in no order."""
    if name == "geometric":
        return tuple(2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads))
    return tuple(0.03125 * (1 + (5 * h) % heads) for h in range(heads))
