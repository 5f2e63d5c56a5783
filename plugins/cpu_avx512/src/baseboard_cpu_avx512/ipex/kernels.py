"""IPEX's kernels in the place of this plugin's own."""

from __future__ import annotations

from typing import ClassVar, Final

from baseboard.contract import AttentionSpec, KVCache, KVCacheSpec, StepBatch
from baseboard_cpu_avx512.ipex.attention import IpexAttention
from baseboard_cpu_avx512.ipex.cache import make_cache, plane_nbytes
from baseboard_cpu_avx512.ipex.installation import Operators
from baseboard_cpu_avx512.ipex.metadata import IpexMetadata
from baseboard_cpu_avx512.ipex.support import CAPABILITIES, reasons
from baseboard_cpu_avx512.memory import PoolMemory


class IpexKernels:
    """A :class:`baseboard_cpu_avx512.kernels.Kernels`. They run on as many threads as torch uses."""

    capabilities: ClassVar = CAPABILITIES

    def __init__(self, operators: Operators) -> None:
        self._operators: Final = operators

    def unsupported(self, kv: KVCacheSpec, attention: AttentionSpec) -> list[str]:
        return reasons(kv, attention)

    def block_nbytes(self, spec: KVCacheSpec) -> int:
        return 2 * spec.num_layers * plane_nbytes(spec)

    def make_cache(self, spec: KVCacheSpec, num_blocks: int, memory: PoolMemory) -> KVCache:
        return make_cache(spec, num_blocks, memory)

    def make_metadata(self, batch: StepBatch, threads: int) -> IpexMetadata:
        del threads  # IPEX asks torch for them
        return IpexMetadata(batch)

    def make_attention(self, attention: AttentionSpec, kv: KVCacheSpec) -> IpexAttention:
        return IpexAttention(self._operators, attention, kv)
