"""From names, as users give them, to the parts that make a scheduler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from baseboard.contract.errors import Unsupported
from baseboard.kv.group import WHOLE, LayerGroup, PoolShape, windowed_chunk
from baseboard.kv.manager import KVCacheManager
from baseboard.kv.prefix import PrefixCache
from baseboard.scheduler.config import SchedulerConfig
from baseboard.scheduler.encoder import EncoderInputs
from baseboard.scheduler.faults import Faults
from baseboard.scheduler.gates import DelayFactor, Gate, MaxAdapters, MaxRunning, Throttle
from baseboard.scheduler.limits import AlignedChunks, Limit, LongPrefill, PromptLogprobsRows, WholePrompts
from baseboard.scheduler.orders import Continuous, PrefillFirst
from baseboard.scheduler.planner import Roles
from baseboard.scheduler.preemption import Cheaper, CostModel, Preemption, Recompute, Swap
from baseboard.scheduler.ranks import Aging, FirstComeFirstServed, Priority
from baseboard.scheduler.registry import Registry, Service, Surroundings, why_unknown

POLICIES: Final[Mapping[str, Service]] = MappingProxyType(
    {
        "fcfs": Service(FirstComeFirstServed(), Continuous()),
        "priority": Service(Priority(), Continuous()),
        "aging": Service(Aging(), Continuous()),
        "prefill_first": Service(FirstComeFirstServed(), PrefillFirst(), whole_prompts=True),
    }
)
PREEMPTIONS: Final[Mapping[str, Callable[[CostModel], Preemption]]] = MappingProxyType(
    {"auto": Cheaper, "recompute": lambda _costs: Recompute(), "swap": lambda _costs: Swap()}
)
_NOBODY: Final = Registry()


@dataclass(frozen=True, slots=True)
class Policy:
    """How requests are served, by name."""

    service: str = "fcfs"
    preemption: str = "auto"
    long_prefill_token_threshold: int = 0  #: 0: a prompt may take the whole step
    delay_factor: float = 0.0  #: see ``DelayFactor``; 0: nobody is held back
    max_adapters: int | None = None  #: distinct LoRA adapters at once; None: no limit
    chunk_alignment: int = 1  #: see ``AlignedChunks``; 1: a chunk may end anywhere
    extensions: tuple[str, ...] = ()  #: what else of other parties' is asked, in this order
    connector: str | None = None  #: another party's source of keys and values

    def __post_init__(self) -> None:
        if self.long_prefill_token_threshold < 0:
            raise ValueError(f"long_prefill_token_threshold={self.long_prefill_token_threshold} must not be negative")
        if not self.delay_factor >= 0:
            raise ValueError(f"delay_factor={self.delay_factor} must not be negative")
        if self.max_adapters is not None and self.max_adapters < 1:
            raise ValueError(f"max_adapters={self.max_adapters} must be at least 1; leave it out for no limit")
        if self.chunk_alignment < 1:
            raise ValueError(f"chunk_alignment={self.chunk_alignment} must be at least 1")

    @property
    def built_in(self) -> bool:
        """Whether everything named here is the core's own."""
        plain = not self.extensions and self.connector is None
        return plain and self.service in POLICIES and self.preemption in PREEMPTIONS


def splits_prompts(policy: str) -> bool:
    """Whether the named policy computes a prompt in chunks; only a built-in one may not."""
    return policy not in POLICIES or not POLICIES[policy].whole_prompts


def check_host_pool(preemption: str, num_host_blocks: int) -> None:
    """Raise ``Unsupported`` where a swap pool and the way to preempt contradict each other."""
    if preemption == "swap" and num_host_blocks == 0:
        raise Unsupported(["preemption='swap' needs num_host_blocks of at least 1; set it, or use 'recompute'"])
    if preemption == "recompute" and num_host_blocks > 0:
        raise Unsupported(
            [f"num_host_blocks={num_host_blocks}, but preemption='recompute' never swaps; use 'auto' or 'swap', or 0"]
        )


def unknown_names(policy: Policy, registry: Registry) -> list[str]:
    """A sentence for each name in ``policy`` that means nothing, and for what failed among the plugins."""
    asked: list[tuple[str, str, Collection[str], Collection[str]]] = [
        ("policy", policy.service, registry.services, POLICIES),
        ("preemption", policy.preemption, registry.preemptions, PREEMPTIONS),
        *(("extension", name, registry.extensions, ()) for name in policy.extensions),
    ]
    if policy.connector is not None:
        asked.append(("connector", policy.connector, registry.sources, ()))
    reasons = [
        reason
        for what, name, others, own in asked
        if name not in own and name not in others
        for reason in why_unknown(what, name, (*own, *others), registry)
    ]
    return list(dict.fromkeys(reasons))


def make_roles(policy: Policy, config: SchedulerConfig, costs: CostModel, registry: Registry = _NOBODY) -> Roles:
    """Raises ``Unsupported`` for a name that nobody has registered, and ``ValueError`` for contradicting limits."""
    if unknown := unknown_names(policy, registry):
        raise Unsupported(unknown)
    around = Surroundings(config, costs, Faults())
    service = _service(policy.service, around, registry)
    limits: list[Limit] = [PromptLogprobsRows()]
    if policy.long_prefill_token_threshold:
        limits.append(_long_prefill(policy.long_prefill_token_threshold, config))
    if policy.chunk_alignment > 1:
        limits.append(AlignedChunks(policy.chunk_alignment))
    if service.whole_prompts or not config.chunked_prefill:
        limits.append(WholePrompts(config.scheduled_tokens))
    remembering: list[DelayFactor | MaxAdapters] = []
    if policy.delay_factor:
        remembering.append(DelayFactor(policy.delay_factor))
    if policy.max_adapters is not None:
        remembering.append(MaxAdapters(policy.max_adapters))
    own: tuple[Gate, ...] = (MaxRunning(config.max_running), Throttle(), *remembering)
    extras = sum((registry.extensions[name](around) for name in policy.extensions), service.extras)
    return Roles(
        rank=service.rank,
        order=service.order,
        preemption=_preemption(policy.preemption, around, registry),
        limits=(*limits, *extras.limits),
        gates=own + extras.gates,
        observers=(*remembering, *extras.observers),
        stops=extras.stops,
        sources=() if policy.connector is None else (registry.sources[policy.connector](around),),
        faults=around.faults,
    )


def with_encoder(roles: Roles, encoder: EncoderInputs) -> Roles:
    """For a model that takes encoder inputs."""
    # The last of the limits: what is left when it has been asked is what the row gets.
    return replace(roles, limits=(*roles.limits, encoder), resources=(*roles.resources, encoder))


def make_preemption(name: str, costs: CostModel) -> Preemption:
    """A built-in one. Raises ``Unsupported`` for an unknown name."""
    if name in PREEMPTIONS:
        return PREEMPTIONS[name](costs)
    raise Unsupported([f"preemption={name!r} is unknown; known are {', '.join(sorted(PREEMPTIONS))}"])


@dataclass(frozen=True, slots=True)
class Layers:
    """How a model's layers look at the KV cache."""

    groups: tuple[LayerGroup, ...] = (WHOLE,)
    chunk: int | None = None  #: tokens that one sequence may be given in a step; None: as many as the step has
    underway: int = sys.maxsize  #: see ``KVCacheManager``

    @classmethod
    def seeing(cls, windows: Sequence[int | None], pool: PoolShape, budget: int, num_steps: int) -> Layers:
        """One group for each window; ``num_steps`` steps of ``budget`` tokens may be under way at once."""
        groups = tuple(map(LayerGroup, windows))
        if all(group.window is None for group in groups):
            return cls(groups)
        chunk = windowed_chunk(groups, pool, budget, num_steps)
        return cls(groups, chunk, chunk * num_steps)

    @property
    def limits(self) -> tuple[Limit, ...]:
        return () if self.chunk is None else (LongPrefill(self.chunk),)


def make_kv(pool: PoolShape, num_host_blocks: int, index: PrefixCache, layers: Layers = Layers()) -> KVCacheManager:
    """Raises ``ValueError`` for sizes that hold nothing."""
    if num_host_blocks < 0:
        raise ValueError(f"num_host_blocks={num_host_blocks} must not be negative")
    kv = KVCacheManager(pool, num_host_blocks, index, layers.groups, layers.underway)
    if kv.longest < 1:
        raise ValueError(
            f"num_blocks={pool.num_blocks} is too few: a step of one sequence may take a block or more for each of "
            f"{len(layers.groups)} layer groups and {layers.underway} tokens under way"
        )
    return kv


def _service(name: str, around: Surroundings, registry: Registry) -> Service:
    if name in POLICIES:
        return POLICIES[name]
    return registry.services[name](around)


def _preemption(name: str, around: Surroundings, registry: Registry) -> Preemption:
    if name in PREEMPTIONS:
        return PREEMPTIONS[name](around.costs)
    return registry.preemptions[name](around)


def _long_prefill(threshold: int, config: SchedulerConfig) -> LongPrefill:
    if threshold > config.scheduled_tokens:
        raise ValueError(
            f"long_prefill_token_threshold={threshold} is more than the {config.scheduled_tokens} tokens of a step: "
            "lower it, or leave it out"
        )
    return LongPrefill(threshold)
