"""Measures what the largest step takes, before the KV pool is sized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baseboard.contract import BackendHooks, RowState, SamplingParams
from baseboard.runtime.binding import allocate, bind
from baseboard.runtime.layers import LayerGroup
from baseboard.runtime.model_loaded import LoadedModel
from baseboard.runtime.sampler import Sampler
from baseboard.runtime.sampling_rows import SamplingRow
from baseboard.runtime.sizing import MemoryProfile
from baseboard.runtime.step_batch import padding_batch


@dataclass(frozen=True, slots=True)
class LargestStep:
    num_tokens: int
    longest_sequence: int
    num_logits: int  #: rows of logits computed at once
    num_samples: int


def profile(hook: BackendHooks, model: LoadedModel, groups: Sequence[LayerGroup], step: LargestStep) -> MemoryProfile:
    """Run the largest step once over the null block and see how far memory use goes up. Leaves nothing bound."""
    hook.synchronize()
    hook.empty_cache()
    hook.reset_peak_memory()
    before = hook.memory_snapshot()
    caches = allocate(hook, groups, num_blocks=0)
    bind(hook, model, groups, caches)
    try:
        _run(hook, model, groups, caches, step)
        hook.synchronize()
        peak = hook.memory_snapshot().peak
    finally:
        model.bridge.release()
        del caches
    hook.empty_cache()
    after = hook.memory_snapshot()
    # What stays after the step (workspaces, code paged in) is held; what goes up and comes down is the peak.
    return MemoryProfile(
        total=after.total,
        free=after.free,
        weights=model.weights_nbytes,
        held=max(after.allocated, before.allocated, model.weights_nbytes),
        activation_peak=max(0, peak - after.allocated),
    )


def _run(
    hook: BackendHooks, model: LoadedModel, groups: Sequence[LayerGroup], caches: Sequence[object], step: LargestStep
) -> None:
    import torch

    device = hook.torch_device()
    batch = padding_batch(step.num_tokens, groups[0].spec.block_size, step.longest_sequence)
    metadata = [hook.build_attention_metadata(batch=batch, cache=cache) for cache in caches]  # pyright: ignore[reportArgumentType]
    rows = torch.arange(step.num_logits, device=device) % step.num_tokens
    with model.bridge.step(metadata):
        logits = model.forward(
            torch.zeros(step.num_tokens, dtype=torch.int64, device=device),
            torch.from_numpy(batch.positions).to(device),
            rows,
        )
    params = SamplingParams(temperature=1.0, top_p=0.9, top_k=50, seed=0)
    state = RowState("profile", (0,), 1, params, 0, ())
    Sampler().sample(logits[: step.num_samples], [SamplingRow(state, 0) for _ in range(step.num_samples)])
