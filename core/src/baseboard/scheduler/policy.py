"""From names, as users give them, to the parts that make a scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

from baseboard.contract.errors import Unsupported
from baseboard.kv.manager import KVCacheManager
from baseboard.kv.prefix import NoPrefixIndex, PrefixIndex
from baseboard.scheduler.config import SchedulerConfig
from baseboard.scheduler.gates import MaxRunning
from baseboard.scheduler.limits import Limit, LongPrefill, PromptLogprobsRows, WholePrompts
from baseboard.scheduler.planner import Roles
from baseboard.scheduler.preemption import Cheaper, CostModel, Preemption, Recompute, Swap
from baseboard.scheduler.ranks import FirstComeFirstServed, Priority, Rank

RANKS: Final[Mapping[str, Callable[[], Rank]]] = MappingProxyType({"fcfs": FirstComeFirstServed, "priority": Priority})
PREEMPTIONS: Final[Mapping[str, Callable[[CostModel], Preemption]]] = MappingProxyType(
    {"auto": Cheaper, "recompute": lambda _costs: Recompute(), "swap": lambda _costs: Swap()}
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Policy:
    """How requests are served, by name."""

    rank: str = "fcfs"
    preemption: str = "auto"
    long_prefill_token_threshold: int = 0  #: 0: a prompt may take the whole step
    max_num_active_seqs: int | None = None  #: admission limit where it is lower than ``max_num_seqs``


def make_roles(policy: Policy, config: SchedulerConfig, costs: CostModel) -> Roles:
    """Raises ``Unsupported`` for a name that nobody has registered."""
    limits: list[Limit] = [PromptLogprobsRows()]
    if policy.long_prefill_token_threshold:
        limits.append(LongPrefill(policy.long_prefill_token_threshold))
    if not config.chunked_prefill:
        limits.append(WholePrompts(config.max_num_batched_tokens))
    active = policy.max_num_active_seqs
    return Roles(
        rank=_named("policy", policy.rank, RANKS)(),
        preemption=make_preemption(policy.preemption, costs),
        limits=tuple(limits),
        gates=(MaxRunning(config.max_num_seqs if active is None else min(active, config.max_num_seqs)),),
    )


def make_preemption(name: str, costs: CostModel) -> Preemption:
    """Raises ``Unsupported`` for an unknown name."""
    return _named("preemption", name, PREEMPTIONS)(costs)


def make_kv(num_blocks: int, block_size: int, num_host_blocks: int, caching: bool) -> KVCacheManager:  # noqa: FBT001 - a setting, passed on
    for name, value, least in (("num_blocks", num_blocks, 1), ("block_size", block_size, 1)):
        if value < least:
            raise ValueError(f"{name}={value} must be at least {least}")
    if num_host_blocks < 0:
        raise ValueError(f"num_host_blocks={num_host_blocks} must not be negative")
    return KVCacheManager(num_blocks, block_size, num_host_blocks, PrefixIndex() if caching else NoPrefixIndex())


def _named(what: str, name: str, known: Mapping[str, _T]) -> _T:
    if name not in known:
        raise Unsupported([f"{what}={name!r} is unknown; known are {', '.join(sorted(known))}"])
    return known[name]
