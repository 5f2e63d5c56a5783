"""Measures what the largest step takes, before the KV pool is sized."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from baseboard.contract import BackendHooks, KVCache, MemoryShortage, MemorySnapshot, RowState, SamplingParams
from baseboard.runtime.attention_bridge import AttentionCall, attached
from baseboard.runtime.binding import allocate, bind
from baseboard.runtime.layers import LayerGroup
from baseboard.runtime.model_loaded import LoadedModel
from baseboard.runtime.sampler import Sampler
from baseboard.runtime.sampling_rows import SamplingRow
from baseboard.runtime.sizing import MemoryProfile
from baseboard.runtime.step_batch import padding_batch

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, slots=True)
class LargestStep:
    num_tokens: int
    longest_sequence: int
    num_logits: int  #: rows of logits computed at once
    num_samples: int


def profile(hook: BackendHooks, model: LoadedModel, groups: Sequence[LayerGroup], step: LargestStep) -> MemoryProfile:
    """Run the largest step once over the null block and see how far memory use goes up. Leaves nothing bound.

    Raises ``MemoryShortage`` when it does not fit.
    """
    import torch

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
    except torch.OutOfMemoryError as error:
        raise MemoryShortage(_shortage(step, before, error)) from error
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


def _shortage(step: LargestStep, before: MemorySnapshot, error: Exception) -> str:
    return (
        f"a step of max_num_batched_tokens={step.num_tokens} tokens and max_num_seqs={step.num_samples} sequences does "
        f"not fit beside the weights: {before.free:,} of {before.total:,} bytes were free ({error}). "
        f"Lower max_num_batched_tokens or max_num_seqs, or use a smaller model or dtype"
    )


class _Enough(Exception):
    """Every kind of layer has run."""


def _run(
    hook: BackendHooks,
    model: LoadedModel,
    groups: Sequence[LayerGroup],
    caches: Sequence[KVCache],
    step: LargestStep,
) -> None:
    """All tokens through one layer of every kind, then through the head and the sampler.

    Layers give back what they take before the next one runs, and layers with equal parameters take the same: so
    running each kind once goes as high as running all of them.
    """
    import torch

    device = hook.torch_device()
    batch = padding_batch(step.num_tokens, groups[0].spec.block_size, step.longest_sequence)
    metadata = [hook.build_attention_metadata(batch=batch, cache=cache) for cache in caches]
    depth = depth_of_all_kinds(model)
    tokens = torch.zeros(step.num_tokens, dtype=torch.int64, device=device)
    halts = dict.fromkeys(model.attention_modules[depth : depth + 1], _halt)
    with model.bridge.step(metadata), attached(halts), suppress(_Enough):
        model.forward(tokens, torch.from_numpy(batch.positions).to(device), tokens[:1])
    _sample(_head(model, step.num_logits, device), step.num_samples)


def depth_of_all_kinds(model: LoadedModel) -> int:
    """How many layers have to run until one of each kind has: a kind is what attention and parameters look like."""
    layer_of = _enclosing_layers(model)
    kinds = [
        (facts.attention.sliding_window, tuple((name, tuple(p.shape)) for name, p in layer.named_parameters()))
        for facts, layer in zip(model.layers, layer_of, strict=True)
    ]
    return 1 + max(kinds.index(kind) for kind in kinds)


def _enclosing_layers(model: LoadedModel) -> list[nn.Module]:
    """For each attention module the module one level up: norms, attention and feed-forward together."""
    parent_of = {child: parent for parent in model.module.modules() for child in parent.children()}
    return [parent_of[attention] for attention in model.attention_modules]


def _halt(call: AttentionCall) -> torch.Tensor:
    del call
    raise _Enough


def _head(model: LoadedModel, num_logits: int, device: torch.device) -> torch.Tensor:
    """Logits of so many positions, float32 as the sampler gets them."""
    import torch

    head = model.module.get_output_embeddings()
    if head is None:
        return torch.zeros((num_logits, model.vocab_size), device=device)
    weight = cast("torch.Tensor", head.weight)
    with torch.inference_mode():
        return head(torch.zeros((num_logits, weight.shape[1]), dtype=weight.dtype, device=device)).float()


def _sample(logits: torch.Tensor, count: int) -> None:
    params = SamplingParams(temperature=1.0, top_p=0.9, top_k=50, seed=0)
    state = RowState("profile", (0,), 1, params, 0, ((),))
    Sampler().sample(logits[:count], [SamplingRow(state, 0) for _ in range(count)])
