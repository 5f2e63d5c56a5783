"""Finds out, by a dry run, how each layer of a model attends; refuses models that cannot be run faithfully."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from baseboard.contract import AttentionSpec, Unsupported
from baseboard.runtime.attention_bridge import ATTENTION_NAME, AttentionCall, attached, register
from baseboard.runtime.layers import LayerFacts
from baseboard.runtime.model_quiet import quiet_transformers
from baseboard.runtime.model_refusals import (
    GivenFacts,
    config_refusals,
    max_positions,
    promise_refusals,
    text_config,
)

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

#: Keyword arguments of an attention call that may be tensors: those we honour, and those that only repeat positions.
_HARMLESS_TENSORS: Final = frozenset({"s_aux", "position_ids", "cache_position", "position_embeddings"})

_PROBE_LENGTH: Final = 3


@dataclass(frozen=True, slots=True)
class ProbedLayer:
    """A layer's facts and the module that runs its attention."""

    facts: LayerFacts
    module: nn.Module


@dataclass(frozen=True, slots=True)
class _Recorded:
    """One attention call of the dry run."""

    module: nn.Module
    query_shape: tuple[int, ...]
    key_shape: tuple[int, ...]
    value_shape: tuple[int, ...]
    dtypes: frozenset[torch.dtype]
    masked: bool
    facts: dict[str, Any]


class _Recorder:
    """Stands in for the attention of one module: notes the call, answers zeros."""

    def __init__(self, module: nn.Module, calls: list[_Recorded]) -> None:
        self._module = module
        self._calls = calls

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        states = (call.query, call.key, call.value)
        query, key, value = (tuple(s.shape) for s in states)
        dtypes = frozenset(s.dtype for s in states)
        masked = call.mask is not None
        self._calls.append(_Recorded(self._module, query, key, value, dtypes, masked, dict(call.facts)))
        return call.query.new_zeros((*query[:2], value[2]))


def probe(model: PreTrainedModel) -> tuple[ProbedLayer, ...]:
    """The attention layers in model order; afterwards the model's attention is set to ours.

    Raises ``Unsupported`` with one sentence for each obstacle found.
    """
    _refuse(config_refusals(model.config))
    register()
    with quiet_transformers():
        model.set_attn_implementation(ATTENTION_NAME)
    calls = _record(model)
    _refuse(_call_refusals(model, calls))
    facts = tuple(_layer_facts(i, call, max_positions(model.config)) for i, call in enumerate(calls))
    return tuple(ProbedLayer(fact, call.module) for fact, call in zip(facts, calls, strict=True))


def _refuse(reasons: Sequence[str]) -> None:
    if reasons:
        raise Unsupported(reasons)


def _record(model: PreTrainedModel) -> list[_Recorded]:
    import torch

    calls: list[_Recorded] = []
    positions = torch.arange(_PROBE_LENGTH, device=model.device)
    with attached({m: _Recorder(m, calls) for m in model.modules()}):
        packed_logits(model, torch.zeros_like(positions), positions)
    return calls


def packed_logits(model: PreTrainedModel, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Logits ``[T, V]`` of packed tokens, by whatever attention is attached; ``Unsupported`` when it fails."""
    import torch

    with quiet_transformers(), torch.inference_mode():
        try:
            return model(input_ids=token_ids[None], position_ids=positions[None], use_cache=False).logits[0]
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # other people's model code: whatever it raises, this model cannot run here
            name = model.config.model_type
            raise Unsupported([f"{name}: its forward pass fails on packed tokens: {_brief(error)}"]) from error


def _brief(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"


def _call_refusals(model: PreTrainedModel, calls: Sequence[_Recorded]) -> tuple[str, ...]:
    name, num_layers = model.config.model_type, int(text_config(model.config).num_hidden_layers)
    if not calls:
        return (f"{name}: its attention does not go through transformers' AttentionInterface",)
    if len(calls) != num_layers or len({id(call.module) for call in calls}) != num_layers:
        return (f"{name}: it calls attention {len(calls)} times in {num_layers} layers, once per layer is needed",)
    found = [f"{name}: {reason}" for call in calls for reason in _shape_reasons(call, model.dtype)]
    found += [f"{name}: {reason}" for call in calls for reason in _argument_reasons(call)]
    given = [GivenFacts(call.facts.get("sliding_window"), call.facts.get("softcap")) for call in calls]
    return (*dict.fromkeys(found), *promise_refusals(model.config, given))


def _shape_reasons(call: _Recorded, dtype: torch.dtype) -> Iterator[str]:
    (query_len, num_heads, head_size), (key_len, num_kv_heads, key_size) = call.query_shape, call.key_shape
    value_len, num_value_heads, _ = call.value_shape
    if not query_len == key_len == value_len:
        yield f"{query_len} queries meet {key_len} keys and {value_len} values of the same tokens (cross-attention?)"
    if num_kv_heads != num_value_heads or head_size != key_size:
        yield f"keys are {num_kv_heads} x {key_size} but values {num_value_heads} heads, queries {head_size} wide"
    elif num_heads % num_kv_heads:
        yield f"{num_heads} query heads are no multiple of {num_kv_heads} KV heads"
    if call.dtypes != {dtype}:
        found = ", ".join(sorted(str(d) for d in call.dtypes))
        yield f"queries, keys and values come as {found}, the model is {dtype}"


def _argument_reasons(call: _Recorded) -> Iterator[str]:
    import torch

    if call.masked:
        yield "it hands its attention a mask of its own"
    if call.facts.get("is_causal") is False or getattr(call.module, "is_causal", True) is False:
        yield "its attention is not causal"
    for key, argument in call.facts.items():
        if isinstance(argument, torch.Tensor) and key not in _HARMLESS_TENSORS:
            yield f"its attention depends on a tensor {key}, which kernels don't take"


def _layer_facts(index: int, call: _Recorded, limit: int | None) -> LayerFacts:
    _, num_heads, head_size = call.query_shape
    _, num_kv_heads, head_size_v = call.value_shape
    scaling, window = call.facts.get("scaling"), call.facts.get("sliding_window")
    sinks = call.facts.get("s_aux")
    covers_all = window is not None and limit is not None and window >= limit
    return LayerFacts(
        layer_idx=index,
        attention=AttentionSpec(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_size=head_size,
            scale=float(head_size**-0.5 if scaling is None else scaling),
            sliding_window=None if window is None or covers_all else int(window),
            softcap=call.facts.get("softcap"),
            sinks=None if sinks is None else tuple(float(s) for s in sinks.flatten().tolist()),
        ),
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        head_size_v=head_size_v,
    )
