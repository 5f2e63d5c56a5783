"""Connects a model's layers with a backend: refuses what cannot run, makes kernels, binds them to caches."""

from __future__ import annotations

from collections.abc import Sequence

from baseboard.contract import BackendHooks, KVCache, MemoryShortage, Unsupported
from baseboard.runtime.attention_bridge import LayerBinding
from baseboard.runtime.layers import LayerGroup
from baseboard.runtime.model_loaded import LoadedModel


def check_supported(hook: BackendHooks, model: LoadedModel, groups: Sequence[LayerGroup], backend: str) -> None:
    """Raise ``Unsupported`` with every reason the backend gives, before anything is allocated."""
    reasons: list[str] = []
    for group in groups:
        for index in group.layers:
            reasons.extend(hook.unsupported(kv=group.spec, attention=model.layers[index].attention))
    if reasons:
        raise Unsupported([f"{backend} cannot run {model.name}: {reason}" for reason in dict.fromkeys(reasons)])


def bind(hook: BackendHooks, model: LoadedModel, groups: Sequence[LayerGroup], caches: Sequence[KVCache]) -> None:
    """Give each layer its kernel and its place in its group's cache."""
    bindings: dict[int, LayerBinding] = {}
    for number, (group, cache) in enumerate(zip(groups, caches, strict=True)):
        for position, index in enumerate(group.layers):
            kernel = hook.attention_kernel(attention=model.layers[index].attention, kv=group.spec)
            bindings[index] = LayerBinding(kernel, cache.layer(position), number)
    model.bridge.bind([bindings[index] for index in range(len(model.layers))])


def allocate(hook: BackendHooks, groups: Sequence[LayerGroup], num_blocks: int) -> list[KVCache]:
    """Device caches with ``num_blocks`` blocks beside the null block. Raises ``MemoryShortage``."""
    import torch

    try:
        return [hook.allocate_kv_cache(spec=group.spec, num_blocks=num_blocks + 1) for group in groups]
    except torch.OutOfMemoryError as error:
        need = sum(hook.kv_block_nbytes(spec=group.spec) for group in groups) * (num_blocks + 1)
        raise MemoryShortage(
            f"a KV pool of {num_blocks} blocks takes {need:,} bytes, more than the device gives ({error}); "
            f"lower num_kv_blocks or memory_fraction"
        ) from error


def allocate_host(
    hook: BackendHooks, groups: Sequence[LayerGroup], caches: Sequence[KVCache], num_blocks: int
) -> list[KVCache | None]:
    """The swap pools, one a group; none where there are no host blocks. Raises ``MemoryShortage``."""
    import torch

    if not num_blocks:
        return [None for _ in caches]
    try:
        return [hook.allocate_host_kv_cache(like=cache, num_blocks=num_blocks) for cache in caches]
    except torch.OutOfMemoryError as error:
        need = sum(hook.kv_block_nbytes(spec=group.spec) for group in groups) * num_blocks
        raise MemoryShortage(
            f"a host pool of {num_blocks} blocks takes {need:,} bytes, more than the host gives ({error}); "
            f"lower num_host_blocks"
        ) from error
