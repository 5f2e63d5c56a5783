"""Attention kernels and the cache they read: what one family of kernels has of its own."""

from __future__ import annotations

import ctypes
from typing import ClassVar, Final, Protocol

from baseboard.contract import AttentionKernel, AttentionSpec, Capabilities, KVCache, KVCacheSpec, StepBatch
from baseboard.kit.support import reasons_against
from baseboard_cpu_avx512.attention import PagedAttention
from baseboard_cpu_avx512.layout import BlockLayout, make_cache
from baseboard_cpu_avx512.levels import Level
from baseboard_cpu_avx512.memory import PoolMemory
from baseboard_cpu_avx512.metadata import StepMetadata
from baseboard_cpu_avx512.support import CAPABILITIES


class Kernels(Protocol):
    """A family of attention kernels. All else (moves, memory, operators) is the backend's, whatever the family."""

    capabilities: ClassVar[Capabilities]

    def unsupported(self, kv: KVCacheSpec, attention: AttentionSpec) -> list[str]:
        """One sentence for each thing that these kernels cannot do; empty: they can."""
        ...

    def block_nbytes(self, spec: KVCacheSpec) -> int:
        """Bytes of a block in all layers."""
        ...

    def make_cache(self, spec: KVCacheSpec, num_blocks: int, memory: PoolMemory) -> KVCache:
        """A cache in ``memory``. Raises ``torch.OutOfMemoryError``."""
        ...

    def make_metadata(self, batch: StepBatch, threads: int) -> object:
        """The step as these kernels want it, the core's arrays copied."""
        ...

    def make_attention(self, attention: AttentionSpec, kv: KVCacheSpec) -> AttentionKernel:
        """The kernel for layers of this kind, which :meth:`unsupported` has nothing against."""
        ...


class OwnKernels:
    """The kernels of this plugin's library, at one level."""

    capabilities: ClassVar = CAPABILITIES

    def __init__(self, library: ctypes.CDLL, level: Level) -> None:
        self._library: Final = library
        self._level: Final = level

    def unsupported(self, kv: KVCacheSpec, attention: AttentionSpec) -> list[str]:
        return reasons_against(CAPABILITIES, kv, attention)

    def block_nbytes(self, spec: KVCacheSpec) -> int:
        return BlockLayout(spec).block * spec.num_layers

    def make_cache(self, spec: KVCacheSpec, num_blocks: int, memory: PoolMemory) -> KVCache:
        return make_cache(spec, num_blocks, memory)

    def make_metadata(self, batch: StepBatch, threads: int) -> StepMetadata:
        return StepMetadata(self._library, batch, threads)

    def make_attention(self, attention: AttentionSpec, kv: KVCacheSpec) -> PagedAttention:
        return PagedAttention(self._library, self._level, attention, kv)
