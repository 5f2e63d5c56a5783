"""How many KV blocks fit: pure arithmetic on what was measured, item by item."""

from __future__ import annotations

from dataclasses import dataclass

from baseboard.contract import MemoryShortage


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """What was measured, in bytes."""

    total: int  #: of the device, or what the container may use
    free: int  #: left now, with the weights loaded and nothing cached
    weights: int
    held: int  #: all that this process holds now: weights, libraries, code
    activation_peak: int  #: that a worst-case step takes on top, and gives back
    graphs: int = 0  #: that recorded decode steps keep


@dataclass(frozen=True, slots=True)
class SizingLimits:
    """What the user asked for."""

    memory_fraction: float
    block_nbytes: int  #: over all groups of layers
    block_size: int
    max_model_len: int
    max_num_seqs: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Where the memory goes, in bytes; the items add up to ``budget``."""

    total: int
    budget: int  #: ``memory_fraction`` of ``total``, or less where others hold the rest
    weights: int
    other_held: int  #: this process, beside the weights
    activations: int
    margin: int  #: left unused: others' memory, rounding, and what no request could use
    kv_cache: int
    num_blocks: int
    block_nbytes: int
    graphs: int = 0  #: recorded decode steps

    def lines(self) -> tuple[tuple[str, int], ...]:
        """Items and their bytes, for people."""
        recorded = (("recorded decode steps", self.graphs),) if self.graphs else ()
        return (
            ("weights", self.weights),
            ("libraries and buffers", self.other_held),
            ("activation peak", self.activations),
            *recorded,
            ("KV cache", self.kv_cache),
            ("margin", self.margin),
        )


def size_pool(profile: MemoryProfile, limits: SizingLimits) -> MemoryReport:
    """The largest useful pool.

    ``budget = memory_fraction * total``; the pool gets what is left of it, but never more than is free now beside
    the activations, and never more than ``max_num_seqs`` sequences of ``max_model_len`` tokens could fill. Raises
    ``MemoryShortage`` when not even one sequence fits.
    """
    budget = int(limits.memory_fraction * profile.total)
    by_budget = budget - profile.held - profile.activation_peak - profile.graphs
    by_free = profile.free - profile.activation_peak - profile.graphs
    room = min(by_budget, by_free)
    per_sequence = -(-(limits.max_model_len - 1) // limits.block_size)
    num_blocks = min(room // limits.block_nbytes - 1, per_sequence * limits.max_num_seqs)  # 1 is the null block
    if num_blocks < per_sequence:
        raise MemoryShortage(_shortage(profile, limits, room, per_sequence))
    kv_cache = (num_blocks + 1) * limits.block_nbytes
    return MemoryReport(
        total=profile.total,
        budget=budget,
        weights=profile.weights,
        other_held=profile.held - profile.weights,
        activations=profile.activation_peak,
        margin=budget - profile.held - profile.activation_peak - profile.graphs - kv_cache,
        kv_cache=kv_cache,
        num_blocks=num_blocks,
        block_nbytes=limits.block_nbytes,
        graphs=profile.graphs,
    )


def given_pool(profile: MemoryProfile, limits: SizingLimits, num_blocks: int) -> MemoryReport:
    """The same account for a pool whose size the user named."""
    kv_cache = (num_blocks + 1) * limits.block_nbytes
    used = profile.held + profile.activation_peak + profile.graphs + kv_cache
    return MemoryReport(
        total=profile.total,
        budget=max(used, int(limits.memory_fraction * profile.total)),
        weights=profile.weights,
        other_held=profile.held - profile.weights,
        activations=profile.activation_peak,
        margin=max(0, int(limits.memory_fraction * profile.total) - used),
        kv_cache=kv_cache,
        num_blocks=num_blocks,
        block_nbytes=limits.block_nbytes,
        graphs=profile.graphs,
    )


def _shortage(profile: MemoryProfile, limits: SizingLimits, room: int, per_sequence: int) -> str:
    need = (per_sequence + 1) * limits.block_nbytes
    budget = int(limits.memory_fraction * profile.total)
    blocks = max(0, room // limits.block_nbytes - 1)
    way_out = (
        f"max_model_len={blocks * limits.block_size + 1} would fit"
        if blocks
        else "not even one block fits: lower max_num_batched_tokens, or use a smaller model or dtype"
    )
    return (
        f"one sequence of max_model_len={limits.max_model_len} tokens needs {need:,} bytes of KV cache and "
        f"{max(0, room):,} are left: {need - max(0, room):,} bytes are missing. "
        f"Budget {budget:,} (memory_fraction={limits.memory_fraction} of {profile.total:,}), held {profile.held:,} "
        f"(weights {profile.weights:,}), activation peak {profile.activation_peak:,}, "
        f"recorded decode steps {profile.graphs:,}, free {profile.free:,}. "
        f"Lower max_model_len ({way_out}) or raise memory_fraction"
    )
