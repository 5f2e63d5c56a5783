"""An instrument as somebody outside would write it: it notes every call of every backend hook and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from baseboard.contract import (
    AttentionKernel,
    AttentionSpec,
    BackendHooks,
    KVCache,
    KVCacheSpec,
    StepBatch,
    Transfer,
    hookimpl,
)
from baseboard.discovery.hookcheck import hook_names


@dataclass(frozen=True)
class Swap:
    source: KVCache
    destination: KVCache
    pairs: list[list[int]]
    transfer: Transfer


@dataclass
class Trace:
    """What was seen."""

    hooks: list[str] = field(default_factory=list)  #: names, in the order in which the calls ended
    swaps: list[Swap] = field(default_factory=list)
    attentions: list[AttentionSpec] = field(default_factory=list)
    step_tokens: list[int] = field(default_factory=list)


class Tracer:
    """Wraps the hooks whose arguments are of interest; ``_EveryHook`` wraps the others."""

    def __init__(self) -> None:
        self.trace = Trace()

    def begin(self) -> Trace:
        """Start anew; returns what will be filled from now on."""
        self.trace = Trace()
        return self.trace

    @hookimpl(wrapper=True)
    def swap_blocks(self, source: KVCache, destination: KVCache, pairs: Any) -> Generator[None, Transfer, Transfer]:
        transfer = yield
        self.trace.hooks.append("swap_blocks")
        self.trace.swaps.append(Swap(source, destination, pairs.tolist(), transfer))
        return transfer

    @hookimpl(wrapper=True)
    def attention_kernel(
        self, attention: AttentionSpec, kv: KVCacheSpec
    ) -> Generator[None, AttentionKernel, AttentionKernel]:
        kernel = yield
        self.trace.hooks.append("attention_kernel")
        self.trace.attentions.append(attention)
        return kernel

    @hookimpl(wrapper=True)
    def build_attention_metadata(self, batch: StepBatch) -> Generator[None, object, object]:
        metadata = yield
        self.trace.hooks.append("build_attention_metadata")
        self.trace.step_tokens.append(batch.num_tokens)
        return metadata


def _noting(name: str) -> Callable[[Tracer], Generator[None, Any, Any]]:
    @hookimpl(wrapper=True)
    def noted(self: Tracer) -> Generator[None, Any, Any]:
        result = yield
        self.trace.hooks.append(name)
        return result

    return noted


_others = {name: _noting(name) for name in hook_names(BackendHooks) if not hasattr(Tracer, name)}
_EveryHook = type("_EveryHook", (Tracer,), _others)

#: What the entry point names.
tracer: Tracer = _EveryHook()
