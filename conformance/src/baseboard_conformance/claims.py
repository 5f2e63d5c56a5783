"""What a case needs of a backend, held against what the backend declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from baseboard.contract import Capabilities, DType, Feature, KVDType
from baseboard_conformance.outside import as_list

#: Features that ``unsupported`` cannot see in its two specs: no way to refuse them before a batch is there.
INVISIBLE: Final[frozenset[Feature]] = frozenset({"mixed_batch", "non_causal", "async_swap"})


@dataclass(frozen=True, slots=True)
class Need:
    """None of a size: whatever the backend prefers."""

    dtype: DType | None = None
    kv_dtype: KVDType = "auto"
    block_size: int | None = None
    head_size: int | None = None
    ratio: int | None = None  #: query heads per KV head
    seqs: int | None = None  #: sequences in one step
    features: frozenset[Feature] = frozenset()

    def missing(self, can: Capabilities) -> list[str]:
        """What ``can`` does not declare, one phrase each."""
        return [*self._formats(can), *self._sizes(can), *(f"feature {f}" for f in sorted(self.features - can.features))]

    def _formats(self, can: Capabilities) -> Iterator[str]:
        if self.dtype is not None and self.dtype not in can.dtypes:
            yield f"dtype {self.dtype}"
        if self.kv_dtype not in can.kv_dtypes:
            yield f"KV dtype {self.kv_dtype}"

    def _sizes(self, can: Capabilities) -> Iterator[str]:
        if self.block_size is not None and self.block_size not in can.block_sizes:
            yield f"block size {self.block_size}"
        if self.head_size is not None and not declares_head_size(can, self.head_size):
            yield f"head size {self.head_size}"
        if self.ratio is not None and can.max_gqa_ratio is not None and self.ratio > can.max_gqa_ratio:
            yield f"{self.ratio} query heads per KV head"
        if self.seqs is not None and can.max_seqs is not None and self.seqs > can.max_seqs:
            yield f"{self.seqs} sequences in one step"

    def refusable(self, can: Capabilities) -> bool:
        """Whether ``unsupported`` can and must refuse this: something that it sees is not declared."""
        seen = Need(
            self.dtype, self.kv_dtype, self.block_size, self.head_size, self.ratio, None, self.features - INVISIBLE
        )
        return bool(seen.missing(can))


def declared(plain: Mapping[str, Any]) -> Capabilities:
    """The capabilities that a worker or a report wrote down."""
    fields: dict[str, Any] = dict(plain)
    for name, value in plain.items():
        members = as_list(value)
        if members is not None:
            fields[name] = tuple(members)
    fields["features"] = frozenset(fields["features"])
    return Capabilities(**fields)


def declares_head_size(can: Capabilities, size: int) -> bool:
    if can.head_sizes is not None:
        return size in can.head_sizes
    return 0 < size <= can.max_head_size and size % can.head_size_multiple == 0


def preferred_head_size(can: Capabilities) -> int:
    """64 where that is declared, else the declared size nearest to it."""
    if can.head_sizes is not None:
        return min(can.head_sizes, key=lambda size: (abs(size - 64), size))
    step = can.head_size_multiple
    return min(max(step, 64 // step * step), can.max_head_size)


def preferred_ratio(can: Capabilities) -> int:
    return 4 if can.max_gqa_ratio is None else min(4, can.max_gqa_ratio)
