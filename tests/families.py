"""Decoder families of transformers as tiny random models: what the runtime must run unchanged.

``build(name)`` gives a float32 model in eval mode: hidden size 64, 3 layers, a vocabulary of 128. Its weights are
drawn wide enough that the most likely token stands out; families with windows have windows of 8 tokens, so that
short tests cross them.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from baseboard.runtime.model_quiet import quiet_transformers

VOCAB_SIZE = 128
WINDOW = 8

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,  # tied, a random model tends to say the last token again
}
_HEAD_16: dict[str, Any] = {"head_dim": 16}
_MIXED: dict[str, Any] = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

#: Family name (the ``model_type`` of transformers) to the settings that differ from the common ones.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": WINDOW},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 0, **_MIXED},
    "qwen3": _HEAD_16,
    "qwen3_moe": {**_HEAD_16, **_EXPERTS},
    "gemma": _HEAD_16,
    "gemma2": {**_HEAD_16, **_MIXED, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0},
    "gemma3_text": {**_HEAD_16, **_MIXED, "query_pre_attn_scalar": 16},
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {"sliding_window": WINDOW},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256},
    "gpt_neox": {},
    "gpt_oss": {**_HEAD_16, **_MIXED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_bigcode": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256, "n_inner": 96},
    "olmo2": {},
    "olmo3": _MIXED,
    "granite": {"logits_scaling": 2.0, "attention_multiplier": 0.3},
    "starcoder2": {"sliding_window": WINDOW},
    "stablelm": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
    "cohere": {"logit_scale": 1.0},
    "cohere2": {**_MIXED, "logit_scale": 1.0},
    "glm4": _HEAD_16,
    "smollm3": {"no_rope_layers": [1, 0, 1]},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "exaone4": _MIXED,
    "nemotron": {},
    "ernie4_5": _HEAD_16,
    "hunyuan_v1_dense": _HEAD_16,
    "seed_oss": _HEAD_16,
    "apertus": {},
}


def build(name: str, seed: int = 0) -> Any:
    """A tiny model of the family; the same name and seed give the same weights."""
    settings = {key: value for key, value in {**_COMMON, **FAMILIES[name]}.items() if _takes(name, key)}
    config = AutoConfig.for_model(name, **settings)
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # what is not a matrix keeps some of its own random beginnings
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    return randomise(model, zlib.crc32(name.encode()) + seed)


def _takes(name: str, key: str) -> bool:
    """gpt2 and its kin name their sizes in their own way and would take both."""
    return not (FAMILIES[name].get("n_embd") and key in {"hidden_size", "num_hidden_layers", "num_attention_heads"})


def randomise(model: Any, seed: int) -> Any:
    """Draw all weights anew: matrices wide, norms and biases around what they were."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            if parameter.ndim >= 2:
                parameter.copy_(0.2 * noise)
            else:
                parameter.add_(0.1 * noise)
    return model.eval().requires_grad_(False)
