"""What a model's configuration says that rules out running it on packed tokens with a backend's attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"
_CHUNKED: Final = "chunked_attention"

#: Configuration fields by which models that keep a state beside, or in place of, keys and values give themselves away.
_STATE_FIELDS: Final = (
    "state_size",
    "ssm_state_size",
    "mamba_d_state",
    "d_state",
    "linear_conv_kernel_dim",
    "conv_L_cache",
    "lru_width",
    "attention_hidden_size",
)


def text_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration of the language model itself: a part of the whole in multimodal models."""
    return config.get_text_config(decoder=True)


def layer_types(config: PreTrainedConfig) -> tuple[str, ...]:
    """One name per layer; empty where all layers are alike."""
    return tuple(getattr(text_config(config), "layer_types", None) or ())


def rope_settings(config: PreTrainedConfig) -> tuple[dict[str, Any], ...]:
    """The rotary embeddings' parameters: one set, or one for each kind of layer, or none."""
    found = getattr(text_config(config), "rope_parameters", None) or {}
    nested = tuple(entry for entry in found.values() if isinstance(entry, dict) and "rope_type" in entry)
    return nested or ((found,) if found else ())


def max_positions(config: PreTrainedConfig) -> int | None:
    """Positions the model can take; None when nothing limits them.

    Rotary embeddings of the ``longrope`` kind switch all tokens of a batch to other frequencies as soon as one of
    them is beyond the original length. A request's text would depend on its neighbours, so that length is the limit.
    """
    text = text_config(config)
    limits = [getattr(text, "max_position_embeddings", None)]
    limits += [
        rope.get("original_max_position_embeddings", getattr(text, "original_max_position_embeddings", None))
        for rope in rope_settings(config)
        if rope.get("rope_type") == "longrope"
    ]
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)


def config_refusals(config: PreTrainedConfig) -> tuple[str, ...]:
    """One sentence for each obstacle, naming the model type; empty when the configuration shows none."""
    name = config.model_type
    return tuple(f"{name}: {reason}" for reason in _reasons(config))


def _reasons(config: PreTrainedConfig) -> Iterator[str]:
    text = text_config(config)
    if config.is_encoder_decoder:
        yield "it is an encoder-decoder model, only decoder-only models can run"
    if getattr(text, "kv_lora_rank", None):
        yield f"it has multi-head latent attention (kv_lora_rank={text.kv_lora_rank}), which needs a cache of its own"
    for field in _STATE_FIELDS:
        if getattr(text, field, None):
            yield f"it keeps a recurrent state ({field}={getattr(text, field)}), only keys and values can be cached"
            break
    if not getattr(text, "is_causal", True) or getattr(text, "use_bidirectional_attention", None) in {True, "all"}:
        yield "its attention is bidirectional, only causal attention can run"
    yield from _layer_type_reasons(config)


def _layer_type_reasons(config: PreTrainedConfig) -> Iterator[str]:
    text, limit = text_config(config), max_positions(config)
    chunk = getattr(text, "attention_chunk_size", None)
    chunked = bool(chunk) and (limit is None or chunk < limit)
    names = set(layer_types(config))
    if chunked and (not names or _CHUNKED in names):
        yield f"its attention sees chunks of {chunk} tokens (attention_chunk_size) but it takes {limit or 'any number'}"
    known = {_FULL, _SLIDING} | ({_CHUNKED} if chunk else set())
    unknown = sorted(names - known)
    if unknown:
        yield f"its layers are of the types {', '.join(unknown)}, only {_FULL} and {_SLIDING} can run"


@dataclass(frozen=True, slots=True)
class GivenFacts:
    """What a layer's attention function was told of the window and the softcap."""

    window: int | None
    softcap: float | None


def promise_refusals(config: PreTrainedConfig, given: Sequence[GivenFacts]) -> tuple[str, ...]:
    """Whether each layer's attention was told what the configuration promises; one sentence for each that was not.

    A model that applies its window by a mask alone, or a softcap within its own attention only, would otherwise lose
    it without notice.
    """
    found = [reason for layer, facts in enumerate(given) for reason in _broken_promises(config, layer, facts)]
    return tuple(f"{config.model_type}: {reason}" for reason in found[:1])


def _broken_promises(config: PreTrainedConfig, layer: int, given: GivenFacts) -> Iterator[str]:
    text, names = text_config(config), layer_types(config)
    window = getattr(text, "sliding_window", None) if getattr(text, "use_sliding_window", True) else None
    if layer < len(names):
        slides = names[layer] == _SLIDING
        if slides != (given.window is not None):
            yield f"layer {layer} is {names[layer]} but its attention was given the window {given.window}"
    elif window is not None and given.window is None:
        yield f"it has a sliding window of {window}, which the attention of layer {layer} was not given"
    if isinstance(window, int) and given.window not in {None, window}:
        yield f"layer {layer} was given the window {given.window}, the configuration says {window}"
    softcap = getattr(text, "attn_logit_softcapping", None)
    if softcap != given.softcap:
        yield f"layer {layer} was given the softcap {given.softcap}, the configuration says {softcap}"
