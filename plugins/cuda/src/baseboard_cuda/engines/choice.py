"""Which engine computes a layer's attention: as the option ``attention`` says, never by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import torch

from baseboard.contract import AttentionKernel, AttentionSpec, KVCacheSpec
from baseboard_cuda.cache import LayerPlane
from baseboard_cuda.metadata import CudaMetadata

OWN: Final = "triton"
AUTO: Final = "auto"  #: the first of the others that fits, else our own

_log: Final = logging.getLogger(__name__)

#: Attention of ``query`` ``[T, H, D]`` over a layer's blocks: a new tensor ``[T, H, D]``.
Attend: TypeAlias = Callable[[torch.Tensor, LayerPlane, CudaMetadata], torch.Tensor]


class Engine(Protocol):
    """One implementation of attention that is not ours."""

    @property
    def name(self) -> str: ...
    def reasons_against(self, attention: AttentionSpec, kv: KVCacheSpec) -> list[str]:
        """Why it cannot compute such layers, one sentence each; empty if it can."""
        ...

    def make(self, attention: AttentionSpec, kv: KVCacheSpec) -> Attend:
        """For one layer; only where there are no reasons against it."""
        ...


@dataclass(frozen=True, slots=True)
class Missing:
    """An engine that is not to be had here."""

    name: str
    reason: str

    def reasons_against(self, attention: AttentionSpec, kv: KVCacheSpec) -> list[str]:
        del attention, kv
        return [self.reason]

    def make(self, attention: AttentionSpec, kv: KVCacheSpec) -> Attend:
        raise NotImplementedError(f"{self.name} is never chosen: {self.reason}")


@dataclass(frozen=True, slots=True)
class Choice:
    """What a kind of layer gets. ``against`` tells of the engines that were considered before, by name."""

    engine: Engine | None  #: None: our own
    against: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        return OWN if self.engine is None else self.engine.name


@dataclass(frozen=True, slots=True)
class JoinedAttention:
    """Implements :class:`baseboard.contract.AttentionKernel`: stored by our kernel, computed by another engine."""

    store: AttentionKernel
    compute: Attend

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: LayerPlane, metadata: CudaMetadata) -> None:
        self.store.write(key, value, layer, metadata)

    def attend(
        self, query: torch.Tensor, layer: LayerPlane, metadata: CudaMetadata, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        del out  # callers use what is returned
        return self.compute(query, layer, metadata)


def choose(wanted: str, engines: Sequence[Engine], attention: AttentionSpec, kv: KVCacheSpec) -> Choice:
    """Our own unless something else is ``wanted``; what is wanted by name must have no reasons against it."""
    against: list[tuple[str, str]] = []
    for engine in _considered(wanted, engines):
        reasons = engine.reasons_against(attention, kv)
        if not reasons:
            return Choice(engine, tuple(against))
        against.append((engine.name, "; ".join(reasons)))
    return Choice(None, tuple(against))


def reasons_against(wanted: str, engines: Sequence[Engine], attention: AttentionSpec, kv: KVCacheSpec) -> list[str]:
    """Why the engine that is wanted by name cannot compute these layers; with ``auto`` there is always ours."""
    named = [engine for engine in engines if engine.name == wanted]
    return [f"with attention={wanted}: {r}" for engine in named for r in engine.reasons_against(attention, kv)]


def tell(choice: Choice, attention: AttentionSpec, kv: KVCacheSpec) -> None:
    """Log what runs, where there was a choice."""
    why = "".join(f"; not {name}: {reason}" for name, reason in choice.against)
    heads = f"{attention.num_heads} heads of {attention.head_size} over {kv.num_kv_heads}, {kv.dtype}"
    _log.info("attention of %s is computed by %s%s", heads, choice.name, why)


def _considered(wanted: str, engines: Sequence[Engine]) -> Iterator[Engine]:
    return (engine for engine in engines if wanted in {AUTO, engine.name})
