"""Models that cannot be run faithfully are refused, each with a sentence that names the model type and the obstacle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from baseboard.contract import Unsupported
from baseboard.runtime.loader import load_model, wrap_model
from baseboard.runtime.model_quiet import quiet_transformers
from baseboard.runtime.model_refusals import GivenFacts, config_refusals, max_positions, promise_refusals
from baseboard.runtime.model_selfcheck import check_reproduces
from baseboard.runtime.probe import ProbedLayer, probe
from baseboard.runtime.sources import ModelSource
from families import build, randomise

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
}
MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
LLAMA4 = {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}


def small(model_type: str, **settings: Any) -> Any:
    with quiet_transformers():
        config = AutoConfig.for_model(model_type, **SMALL | settings)
        return randomise(AutoModelForCausalLM.from_config(config, dtype=torch.float32), 1)


def with_attention(layers: Sequence[ProbedLayer], **changes: Any) -> list[ProbedLayer]:
    return [
        replace(layer, facts=replace(layer.facts, attention=replace(layer.facts.attention, **changes)))
        for layer in layers
    ]


@pytest.mark.parametrize(
    ("model_type", "settings", "obstacle"),
    [
        ("falcon", {}, "does not go through transformers' AttentionInterface"),
        ("bloom", {"n_head": 4, "n_layer": 2}, "does not go through transformers' AttentionInterface"),
        ("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2}, "does not go through transformers' AttentionInterface"),
        ("deepseek_v3", MLA, "kv_lora_rank=8"),
        ("llama4_text", {**LLAMA4, "attention_chunk_size": 16}, "chunks of 16 tokens (attention_chunk_size)"),
        ("mamba", {"state_size": 8}, "recurrent state (state_size=8)"),
        ("jamba", {"num_experts": 2, "use_mamba_kernels": False}, "recurrent state (mamba_d_state=16)"),
        ("lfm2", {}, "recurrent state"),
        ("rwkv", {}, "recurrent state"),
        ("diffllama", {}, "calls attention 4 times in 2 layers"),
        ("doge", {}, "a mask of its own"),
        ("roberta", {"is_decoder": True}, "more than the interface shows"),  # counts positions from 2 on
        ("bert", {"is_decoder": False}, "not causal"),
    ],
)
def test_refused_families(model_type: str, settings: dict[str, Any], obstacle: str) -> None:
    with pytest.raises(Unsupported) as refused:
        wrap_model(small(model_type, **settings))
    reasons = refused.value.reasons
    assert any(obstacle in reason for reason in reasons)
    assert all(reason.startswith(f"{model_type}: ") for reason in reasons)


def test_chunks_that_cover_every_position_are_full_attention() -> None:
    layers = wrap_model(small("llama4_text", **LLAMA4, attention_chunk_size=128)).layers
    assert [layer.attention.sliding_window for layer in layers] == [None, None]


def test_layer_types_that_are_not_attention_are_named() -> None:
    config = build("llama").config
    config.layer_types = ["full_attention", "wavelet_attention", "conv"]
    (reason,) = config_refusals(config)
    assert reason.startswith("llama: ")
    assert "conv, wavelet_attention" in reason


@pytest.mark.parametrize(("model_type", "settings"), [("t5", {}), ("bart", {"d_model": 32})])
def test_encoder_decoder_models_are_refused_before_their_weights_are_read(
    model_type: str, settings: dict[str, Any], tmp_path: Any
) -> None:
    AutoConfig.for_model(model_type, vocab_size=64, **settings).save_pretrained(tmp_path)
    with pytest.raises(Unsupported, match=f"{model_type}: it is an encoder-decoder model"):
        load_model(ModelSource("folder", tmp_path, None, "it"), "float32", "cpu")


def test_a_type_without_a_causal_model_is_refused(tmp_path: Any) -> None:
    AutoConfig.for_model("clip").save_pretrained(tmp_path)
    with pytest.raises(Unsupported, match="clip: transformers has no causal language model"):
        load_model(ModelSource("folder", tmp_path, None, "it"), "float32", "cpu")


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"scale": 0.2}),
        ("mistral", {"sliding_window": 9}),
        ("mistral", {"sliding_window": None}),
        ("llama", {"sliding_window": 4}),
        ("gemma2", {"softcap": None}),
        ("gpt_oss", {"sinks": None}),
    ],
)
def test_the_self_check_sees_a_wrong_fact(family: str, changes: dict[str, Any]) -> None:
    model = build(family)
    wrong = with_attention(probe(model), **changes)
    with pytest.raises(Unsupported, match=f"{family}: its attention does more than the interface shows"):
        check_reproduces(model, wrong)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "mixtral", "granite"])
def test_rounding_is_no_reason_to_refuse(family: str, dtype: torch.dtype) -> None:
    loaded = wrap_model(build(family).to(dtype))
    assert loaded.dtype == str(dtype).removeprefix("torch.")
    assert {group.spec.dtype for group in loaded.groups(16)} == {loaded.dtype}


def test_a_wrong_window_shows_in_half_precision_too() -> None:
    model = build("mistral").to(torch.bfloat16)
    wrong = with_attention(probe(model), sliding_window=2)
    with pytest.raises(Unsupported, match="more than the interface shows"):
        check_reproduces(model, wrong)


def test_tokens_that_mix_outside_attention_are_noticed() -> None:
    """As in models that shift or convolve tokens beside an attention that looks ordinary."""
    model: Any = build("llama")

    def add_the_token_before(_module: Any, _inputs: Any, states: torch.Tensor) -> torch.Tensor:
        return states + states.roll(1, dims=1)

    model.model.layers[1].mlp.register_forward_hook(add_the_token_before)
    with pytest.raises(Unsupported, match="more than the interface shows"):
        wrap_model(model)
    assert len(wrap_model(model, self_check="skip").layers) == 3


def test_a_model_that_fails_on_packed_tokens_is_refused() -> None:
    model: Any = build("llama")

    def fail(*_: Any) -> None:
        raise RuntimeError("I want a mask\nand more")

    model.model.layers[2].register_forward_hook(fail)
    with pytest.raises(
        Unsupported, match=r"llama: its forward pass fails on packed tokens: RuntimeError: I want a mask$"
    ):
        wrap_model(model)


@pytest.mark.parametrize(
    ("family", "given", "obstacle"),
    [
        ("mistral", GivenFacts(None, None), "sliding window of 8, which the attention of layer 0 was not given"),
        ("mistral", GivenFacts(7, None), "given the window 7, the configuration says 8"),
        ("olmo3", GivenFacts(None, None), "layer 0 is sliding_attention but its attention was given the window None"),
        ("gemma2", GivenFacts(8, None), "given the softcap None, the configuration says 5.0"),
        ("llama", GivenFacts(None, 3.0), "given the softcap 3.0, the configuration says None"),
    ],
)
def test_what_the_configuration_promises_must_reach_the_attention(
    family: str, given: GivenFacts, obstacle: str
) -> None:
    (reason,) = promise_refusals(build(family).config, [given])
    assert obstacle in reason


def test_longrope_is_limited_to_the_length_where_it_would_switch() -> None:
    factors = [1.0] * 4
    rope = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "rope_theta": 1e4}
    settings = {"rope_parameters": rope, "original_max_position_embeddings": 64, "pad_token_id": 0}
    with quiet_transformers():
        config = AutoConfig.for_model("phi3", **SMALL | settings)
    assert max_positions(config) == 64
    assert max_positions(build("phi3").config) == 256
    assert max_positions(build("gpt2").config) == 256
    assert max_positions(AutoConfig.for_model("bloom")) is None
