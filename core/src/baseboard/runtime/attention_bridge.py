"""Lets a transformers model run its attention through a backend's kernels.

transformers looks attention functions up by name. One function of ours is registered; it finds what to do on the
attention module that calls it, because extra keyword arguments don't reach the function in every model family.

::

    model layer --> packed_attention(module, q, k, v) --> what is attached to the module --> kernel.write, .attend
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from baseboard.contract import AttentionKernel, ContractError

if TYPE_CHECKING:
    import torch
    from torch import nn

#: The name by which transformers knows our attention function.
ATTENTION_NAME: Final = "baseboard"

_ATTACHED: Final = "baseboard_attention"


class AttentionCall(NamedTuple):
    """What a layer hands to its attention: views with the tokens in front, and everything else as it came."""

    query: torch.Tensor  #: ``[T, H, D]``
    key: torch.Tensor  #: ``[T, Hkv, D]``
    value: torch.Tensor  #: ``[T, Hkv, Dv]``
    mask: torch.Tensor | None
    facts: Mapping[str, Any]  #: scaling, sliding_window, softcap, s_aux, ...: by the names transformers uses


#: Computes one call: ``[T, H, Dv]``.
Attention: TypeAlias = Callable[[AttentionCall], "torch.Tensor"]


@dataclass(frozen=True, slots=True)
class LayerBinding:
    """One layer's way to its backend."""

    kernel: AttentionKernel
    layer: Any  #: the token that ``KVCache.layer`` gave
    group: int  #: index of the layer's group: which metadata of a step is its own


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    **facts: Any,
) -> tuple[torch.Tensor, None]:
    """The function registered with transformers: ``[1, H, T, D]`` in, ``[1, T, H, Dv]`` out.

    No attention weights are returned. Raises ``ContractError`` when nothing is attached to ``module``.
    """
    attention: Attention | None = module.__dict__.get(_ATTACHED)
    if attention is None:
        raise ContractError(f"{type(module).__name__} ran its attention with no kernel attached; bind the bridge first")
    call = AttentionCall(_tokens_first(query), _tokens_first(key), _tokens_first(value), attention_mask, facts)
    # Some models view the result in another shape, which a strided one does not allow.
    return attention(call).contiguous().unsqueeze(0), None


def _tokens_first(states: torch.Tensor) -> torch.Tensor:
    """``[1, H, T, D]`` as ``[T, H, D]``: a view, unless the last dimension is strided."""
    rows = states[0].transpose(0, 1)
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def register() -> None:
    """Make the function known to transformers. Doing it again changes nothing.

    No mask function goes with it: transformers then builds no mask and the function gets None.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, packed_attention)


@contextmanager
def attached(attentions: Mapping[nn.Module, Attention]) -> Iterator[None]:
    """For a while, let each module compute its attention by what it is given here; then as before."""
    before = {module: module.__dict__.get(_ATTACHED) for module in attentions}
    try:
        for module, attention in attentions.items():
            setattr(module, _ATTACHED, attention)
        yield
    finally:
        for module, attention in before.items():
            _restore(module, attention)


def _restore(module: nn.Module, attention: Attention | None) -> None:
    if attention is None:
        module.__dict__.pop(_ATTACHED, None)
    else:
        setattr(module, _ATTACHED, attention)


class AttentionBridge:
    """Binds the attention modules of one model, in layer order, to kernels. Owner: the executor."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = tuple(modules)
        self._current: list[_GroupStep] = []

    def bind(self, bindings: Sequence[LayerBinding]) -> None:
        """Attach one kernel to each layer; what was bound before is replaced.

        Raises ``ContractError`` when there isn't exactly one binding for each layer.
        """
        if len(bindings) != len(self._modules):
            raise ContractError(f"{len(bindings)} bindings for a model of {len(self._modules)} attention layers")
        num_groups = 1 + max((b.group for b in bindings), default=-1)
        self._current = [_GroupStep() for _ in range(num_groups)]
        for module, binding in zip(self._modules, bindings, strict=True):
            setattr(module, _ATTACHED, _KernelAttention(binding, self._current[binding.group]))

    def release(self) -> None:
        """Detach all kernels, so that the caches they hold can be freed."""
        self._current = []
        for module in self._modules:
            _restore(module, None)

    @contextmanager
    def step(self, metadata: Sequence[object]) -> Iterator[None]:
        """Let the model run one forward pass: ``metadata`` holds one entry for each group."""
        if len(metadata) != len(self._current):
            raise ContractError(f"{len(metadata)} metadata for {len(self._current)} groups of layers")
        for group, entry in zip(self._current, metadata, strict=True):
            group.metadata = entry
        try:
            yield
        finally:
            for group in self._current:
                group.metadata = None


class _GroupStep:
    """The metadata of the step under way, shared by the layers of a group; None between steps."""

    __slots__ = ("metadata",)

    def __init__(self) -> None:
        self.metadata: object = None


class _KernelAttention:
    """What the bridge attaches to a module: store this step's keys and values, then attend."""

    __slots__ = ("_attend", "_group", "_layer", "_write")

    def __init__(self, binding: LayerBinding, group: _GroupStep) -> None:
        self._write = binding.kernel.write
        self._attend = binding.kernel.attend
        self._layer = binding.layer
        self._group = group

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        metadata = self._group.metadata
        if metadata is None:
            raise ContractError("the model ran outside a step: wrap its forward pass in AttentionBridge.step")
        self._write(call.key, call.value, self._layer, metadata)
        return self._attend(call.query, self._layer, metadata)
