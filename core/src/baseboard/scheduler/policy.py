"""From names, as users give them, to the parts that make a scheduler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, TypeVar

from baseboard.contract.errors import Unsupported
from baseboard.kv.group import WHOLE, LayerGroup, PoolShape, windowed_chunk
from baseboard.kv.manager import KVCacheManager
from baseboard.kv.prefix import NoPrefixIndex, PrefixIndex
from baseboard.scheduler.config import SchedulerConfig
from baseboard.scheduler.encoder import EncoderInputs
from baseboard.scheduler.gates import DelayFactor, MaxAdapters, MaxRunning, Throttle
from baseboard.scheduler.limits import AlignedChunks, Limit, LongPrefill, PromptLogprobsRows, WholePrompts
from baseboard.scheduler.orders import Continuous, Order, PrefillFirst
from baseboard.scheduler.planner import Roles
from baseboard.scheduler.preemption import Cheaper, CostModel, Preemption, Recompute, Swap
from baseboard.scheduler.ranks import FirstComeFirstServed, Priority, Rank


@dataclass(frozen=True, slots=True)
class Service:
    """Who is better than whom, and which kind of work comes first."""

    rank: Rank
    order: Order
    whole_prompts: bool = False  #: prompts are never split


POLICIES: Final[Mapping[str, Service]] = MappingProxyType(
    {
        "fcfs": Service(FirstComeFirstServed(), Continuous()),
        "priority": Service(Priority(), Continuous()),
        "prefill_first": Service(FirstComeFirstServed(), PrefillFirst(), whole_prompts=True),
    }
)
PREEMPTIONS: Final[Mapping[str, Callable[[CostModel], Preemption]]] = MappingProxyType(
    {"auto": Cheaper, "recompute": lambda _costs: Recompute(), "swap": lambda _costs: Swap()}
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Policy:
    """How requests are served, by name."""

    service: str = "fcfs"
    preemption: str = "auto"
    long_prefill_token_threshold: int = 0  #: 0: a prompt may take the whole step
    delay_factor: float = 0.0  #: see ``DelayFactor``; 0: nobody is held back
    max_adapters: int | None = None  #: distinct LoRA adapters at once; None: no limit
    chunk_alignment: int = 1  #: see ``AlignedChunks``; 1: a chunk may end anywhere

    def __post_init__(self) -> None:
        if self.long_prefill_token_threshold < 0:
            raise ValueError(f"long_prefill_token_threshold={self.long_prefill_token_threshold} must not be negative")
        if not self.delay_factor >= 0:
            raise ValueError(f"delay_factor={self.delay_factor} must not be negative")
        if self.max_adapters is not None and self.max_adapters < 1:
            raise ValueError(f"max_adapters={self.max_adapters} must be at least 1; leave it out for no limit")
        if self.chunk_alignment < 1:
            raise ValueError(f"chunk_alignment={self.chunk_alignment} must be at least 1")


def splits_prompts(policy: str) -> bool:
    """Whether the named policy computes a prompt in chunks. Raises ``Unsupported`` for an unknown name."""
    return not _named("policy", policy, POLICIES).whole_prompts


def make_roles(policy: Policy, config: SchedulerConfig, costs: CostModel) -> Roles:
    """Raises ``Unsupported`` for a name that nobody has registered."""
    service = _named("policy", policy.service, POLICIES)
    limits: list[Limit] = [PromptLogprobsRows()]
    if policy.long_prefill_token_threshold:
        limits.append(LongPrefill(policy.long_prefill_token_threshold))
    if policy.chunk_alignment > 1:
        limits.append(AlignedChunks(policy.chunk_alignment))
    if service.whole_prompts or not config.chunked_prefill:
        limits.append(WholePrompts(config.scheduled_tokens))
    remembering: list[DelayFactor | MaxAdapters] = []
    if policy.delay_factor:
        remembering.append(DelayFactor(policy.delay_factor))
    if policy.max_adapters is not None:
        remembering.append(MaxAdapters(policy.max_adapters))
    return Roles(
        rank=service.rank,
        order=service.order,
        preemption=make_preemption(policy.preemption, costs),
        limits=tuple(limits),
        gates=(MaxRunning(config.max_running), Throttle(), *remembering),
        observers=tuple(remembering),
    )


def with_encoder(roles: Roles, encoder: EncoderInputs) -> Roles:
    """For a model that takes encoder inputs."""
    # The last of the limits: what is left when it has been asked is what the row gets.
    return replace(roles, limits=(*roles.limits, encoder), resources=(*roles.resources, encoder))


def make_preemption(name: str, costs: CostModel) -> Preemption:
    """Raises ``Unsupported`` for an unknown name."""
    return _named("preemption", name, PREEMPTIONS)(costs)


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


def make_kv(
    pool: PoolShape,
    num_host_blocks: int,
    caching: bool,  # noqa: FBT001 - a setting, passed on
    layers: Layers = Layers(),
) -> KVCacheManager:
    if num_host_blocks < 0:
        raise ValueError(f"num_host_blocks={num_host_blocks} must not be negative")
    index = PrefixIndex() if caching else NoPrefixIndex()
    kv = KVCacheManager(pool, num_host_blocks, index, layers.groups, layers.underway)
    if kv.longest < 1:
        raise ValueError(
            f"num_blocks={pool.num_blocks} is too few: a step of one sequence may take a block or more for each of "
            f"{len(layers.groups)} layer groups and {layers.underway} tokens under way"
        )
    return kv


def _named(what: str, name: str, known: Mapping[str, _T]) -> _T:
    if name not in known:
        raise Unsupported([f"{what}={name!r} is unknown; known are {', '.join(sorted(known))}"])
    return known[name]
