"""A fast lane for GGUF files of the llama architecture: Llama, Mistral, SmolLM and the many models built like them.

transformers can read these files too, and reads all other architectures for us, but takes about ten times as long: it
parses the vocabulary several times over and decodes in small pieces. Whatever a file holds that is not known here
sends it the long way, so that nothing is left out silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from baseboard.runtime.model_gguf import GGUFHeader, GGUFTensor

if TYPE_CHECKING:
    import torch
    from transformers import LlamaConfig

_Bytes: TypeAlias = NDArray[np.uint8]
_Floats: TypeAlias = NDArray[np.floating[Any]]

_ROPE_FREQUENCIES: Final = "rope_freqs.weight"

_NAMES: Final[Mapping[str, str]] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES: Final[Mapping[str, str]] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_IN_LAYER: Final = re.compile(r"blk\.(\d+)\.(\w+)\.weight")

#: Metadata (after ``llama.``) to the field of the configuration; None where another entry says the same.
_FIELDS: Final[Mapping[str, str | None]] = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "attention.value_length": None,
    "rope.dimension_count": "head_dim",
    "rope.freq_base": None,
    "vocab_size": None,
}
_TOKEN_IDS: Final[Mapping[str, str]] = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """Everything needed to build the model."""

    config: LlamaConfig
    state: dict[str, torch.Tensor]  #: by transformers' names
    rope_divisors: torch.Tensor | None  #: of the rotary embeddings' frequencies, ``[head size / 2]``


def can_read(header: GGUFHeader) -> bool:
    """Whether this lane understands every setting and every tensor of the file."""
    if header.architecture != "llama":
        return False
    settings = [key.removeprefix("llama.") for key in header.metadata if key.startswith("llama.")]
    known = all(key in _FIELDS and not isinstance(header.metadata[f"llama.{key}"], tuple) for key in settings)
    return known and all(t.name == _ROPE_FREQUENCIES or _hf_name(t.name) for t in header.tensors)


def read_llama(header: GGUFHeader, dtype: torch.dtype) -> LlamaWeights:
    """Configuration and weights, decoded to ``dtype``."""
    config = _config(header)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    state: dict[str, torch.Tensor] = {}
    divisors = None
    for tensor in header.tensors:
        weight = _decode(header, tensor)
        if tensor.name == _ROPE_FREQUENCIES:
            divisors = weight
            continue
        part = tensor.name.split(".")[-2]
        if part in heads:
            weight = _halves_apart(weight, heads[part])
        state[_hf_name(tensor.name)] = weight.to(dtype)
    return LlamaWeights(config, state, divisors)


def _hf_name(name: str) -> str:
    """Empty for a tensor that is not known."""
    match = _IN_LAYER.fullmatch(name)
    if match is None:
        return _NAMES.get(name, "")
    part = _LAYER_NAMES.get(match[2])
    return f"model.layers.{match[1]}.{part}.weight" if part else ""


def _config(header: GGUFHeader) -> LlamaConfig:
    from transformers import LlamaConfig

    settings: dict[str, Any] = {
        field: header.metadata[f"llama.{key}"]
        for key, field in _FIELDS.items()
        if field is not None and f"llama.{key}" in header.metadata
    }
    settings.setdefault("num_key_value_heads", settings["num_attention_heads"])
    settings |= {
        field: header.metadata[f"tokenizer.ggml.{key}_token_id"]
        for key, field in _TOKEN_IDS.items()
        if f"tokenizer.ggml.{key}_token_id" in header.metadata
    }
    theta = float(header.metadata.get("llama.rope.freq_base", 10_000.0))
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    return LlamaConfig(
        **settings,
        vocab_size=shapes["token_embd.weight"][0],
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        tie_word_embeddings="output.weight" not in shapes,
        architectures=["LlamaForCausalLM"],
    )


def _halves_apart(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undo the row order of the file, which puts the two dimensions that rotate together side by side.

    ::

        file          0 d/2 1 d/2+1 2 ...      (of each head)
        transformers  0 1 2 ... d/2 d/2+1 ...
    """
    pairs = weight.view(num_heads, -1, 2, weight.shape[-1])
    return pairs.transpose(1, 2).reshape(weight.shape)


def _decode(header: GGUFHeader, tensor: GGUFTensor) -> torch.Tensor:
    """The tensor in float32, or in the floating-point type it has in the file."""
    import torch
    from gguf import GGMLQuantizationType, dequantize

    raw = np.fromfile(header.path, dtype=np.uint8, count=tensor.nbytes, offset=tensor.start)
    decode = _DECODERS.get(tensor.encoding)
    if decode is not None:
        return torch.from_numpy(decode(raw)).reshape(tensor.shape)
    rows = raw.reshape(*tensor.shape[:-1], -1)
    return torch.from_numpy(dequantize(rows, GGMLQuantizationType(tensor.encoding)))


def _f32(raw: _Bytes) -> _Floats:
    return raw.view(np.float32)


def _f16(raw: _Bytes) -> _Floats:
    return raw.view(np.float16)


def _q4_0(raw: _Bytes) -> _Floats:
    """Blocks of 32: a float16 scale, then 4-bit values with 8 for zero."""
    blocks = raw.reshape(-1, 18)
    values = _nibbles(blocks[:, 2:])
    values -= 8
    values *= _half(blocks, 0)
    return values


def _q4_1(raw: _Bytes) -> _Floats:
    """Blocks of 32: float16 scale and minimum, then 4-bit values."""
    blocks = raw.reshape(-1, 20)
    values = _nibbles(blocks[:, 4:])
    values *= _half(blocks, 0)
    values += _half(blocks, 2)
    return values


def _q8_0(raw: _Bytes) -> _Floats:
    """Blocks of 32: a float16 scale, then signed bytes."""
    blocks = raw.reshape(-1, 34)
    values = blocks[:, 2:].view(np.int8).astype(np.float32)
    values *= _half(blocks, 0)
    return values


def _half(blocks: _Bytes, at: int) -> _Floats:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: _Bytes) -> _Floats:
    """Each byte holds an element of the block's first half (low bits) and one of its second."""
    half = packed.shape[1]
    values = np.empty((len(packed), 2 * half), np.float32)
    values[:, :half] = packed & 0xF
    values[:, half:] = packed >> 4
    return values


#: By ``gguf.GGMLQuantizationType``; the gguf package decodes the others, more slowly.
_DECODERS: Final[Mapping[int, Callable[[_Bytes], _Floats]]] = {0: _f32, 1: _f16, 2: _q4_0, 3: _q4_1, 8: _q8_0}
