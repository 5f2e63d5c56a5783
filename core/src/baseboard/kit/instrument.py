"""All checks at once, as an instrument plugin that wraps a backend's hooks."""

from __future__ import annotations

from collections.abc import Generator

from baseboard.contract import AttentionKernel, AttentionSpec, KVCache, KVCacheSpec, StepBatch, hookimpl
from baseboard.kit.checked import CheckedMetadata, checked


class CheckingInstrument:
    """Registered beside a backend, it checks every step's batch and every kernel call. Raises ``ContractError``."""

    @hookimpl(wrapper=True)
    def build_attention_metadata(self, batch: StepBatch, cache: KVCache) -> Generator[None, object, object]:
        inner = yield
        return CheckedMetadata.of(batch, cache, inner)

    @hookimpl(wrapper=True)
    def attention_kernel(
        self, attention: AttentionSpec, kv: KVCacheSpec
    ) -> Generator[None, AttentionKernel, AttentionKernel]:
        kernel = yield
        return checked(kernel, attention, kv)
