"""Weights arrive whole and unchanged, by each way a model can come; nothing is written to the terminal."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file
from transformers.utils import logging

from baseboard.contract import ModelLoadError, Unsupported
from baseboard.runtime.loader import load_model, wrap_model
from baseboard.runtime.model_gguf import GGUFHeader
from baseboard.runtime.model_gguf_llama import can_read, read_llama
from baseboard.runtime.model_quiet import quiet_transformers
from baseboard.runtime.sources import resolve_model
from families import build

TEXT = torch.tensor([[5, 9, 2, 77, 31, 8, 100, 4]])


def own_logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=TEXT, use_cache=False).logits[0]


def packed_logits(loaded: Any, drive: Callable[..., Any]) -> torch.Tensor:
    driver = drive(loaded)
    driver.add("it", TEXT[0].tolist())
    return driver.step({"it": TEXT.shape[1]})["it"]


# --- folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_moe"])
def test_a_folder_of_safetensors(family: str, tmp_path: Path, drive: Callable[..., Any]) -> None:
    model = build(family)
    model.save_pretrained(tmp_path)
    steps: list[str] = []
    loaded = load_model(resolve_model(tmp_path), "float32", "cpu", steps.append)
    torch.testing.assert_close(packed_logits(loaded, drive), own_logits(model), atol=1e-4, rtol=1e-4)
    assert loaded.tokenizer is None
    assert loaded.name == str(tmp_path)
    assert steps == [f"loading tokenizer of {tmp_path}", f"loading weights of {tmp_path}", "checking attention"]


def test_a_folder_of_bin_files(tmp_path: Path, drive: Callable[..., Any]) -> None:
    model = build("llama")
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    loaded = load_model(resolve_model(tmp_path), "float32", "cpu")
    torch.testing.assert_close(packed_logits(loaded, drive), own_logits(model), atol=1e-4, rtol=1e-4)


def test_weights_come_in_the_dtype_asked_for(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    loaded = load_model(resolve_model(tmp_path), "bfloat16", "cpu")
    assert loaded.dtype == "bfloat16"
    assert loaded.weights_nbytes < 2.1 * loaded.num_parameters


def test_weights_that_are_missing_are_not_made_up(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"1 weights are missing .* model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(resolve_model(tmp_path), "float32", "cpu")


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{]")
    with pytest.raises(ModelLoadError, match=f"the tokenizer of '{tmp_path}' cannot be read"):
        load_model(resolve_model(tmp_path), "float32", "cpu")


def test_a_model_type_that_transformers_does_not_know(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"model_type": "llama"', '"model_type": "lllama"'))
    with pytest.raises(ModelLoadError, match="lllama"):
        load_model(resolve_model(tmp_path), "float32", "cpu")


# --- facts of the loaded model ---------------------------------------------------------------------------------------


def test_counts_and_sizes() -> None:
    model = build("llama")
    loaded = wrap_model(model)
    embeddings, attention, mlp = 2 * 128 * 64, 2 * 64 * 64 + 2 * 64 * 32, 3 * 64 * 96
    assert loaded.num_parameters == embeddings + 3 * (attention + mlp + 2 * 64) + 64
    assert loaded.weights_nbytes == 4 * (loaded.num_parameters + 2 * 8)  # two buffers of rotary frequencies
    assert (loaded.vocab_size, loaded.max_positions, loaded.device.type) == (128, 256, "cpu")
    assert loaded.config.model_type == "llama"
    assert not any(p.requires_grad for p in model.parameters())
    assert not model.training


def test_end_tokens_are_gathered_from_everywhere() -> None:
    model: Any = build("llama")
    assert wrap_model(model).eos_token_ids == {2}
    model.generation_config.eos_token_id = [7, 9]
    assert wrap_model(model).eos_token_ids == {2, 7, 9}
    model.generation_config = None
    model.config.eos_token_id = None
    assert wrap_model(model).eos_token_ids == frozenset()


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_only_the_rows_asked_for_are_computed(family: str, drive: Callable[..., Any]) -> None:
    loaded = wrap_model(build(family).to(torch.bfloat16))
    driver = drive(loaded)
    driver.add("it", TEXT[0].tolist())
    batch = driver._batch({"it": 8})
    with loaded.bridge.step([batch] * len(loaded.groups(4))):
        every = loaded.forward(TEXT[0], torch.arange(8), torch.arange(8))
        some = loaded.forward(TEXT[0], torch.arange(8), torch.tensor([7, 2]))
        none = loaded.forward(TEXT[0], torch.arange(8), torch.tensor([], dtype=torch.int64))
    assert every.dtype == torch.float32
    torch.testing.assert_close(some, every[[7, 2]])
    assert none.shape == (0, 128)


def test_a_head_that_takes_no_rows_is_sliced(drive: Callable[..., Any]) -> None:
    model: Any = build("llama")
    expected = own_logits(model)
    forward = model.forward
    model.forward = lambda input_ids, position_ids=None, use_cache=None: forward(
        input_ids=input_ids, position_ids=position_ids, use_cache=use_cache
    )
    torch.testing.assert_close(packed_logits(wrap_model(model), drive), expected, atol=1e-4, rtol=1e-4)


# --- GGUF ------------------------------------------------------------------------------------------------------------

SIZES = {"num_heads": 4, "num_kv_heads": 2, "layers": 3}
NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Row order of llama files: the two rows of a head that rotate together come one after the other."""
    half = weight.shape[0] // num_heads // 2
    order = [head * 2 * half + i + part * half for head in range(num_heads) for i in range(half) for part in (0, 1)]
    return weight[order]


def write_gguf(
    path: Path, model: Any, encoding: GGMLQuantizationType, architecture: str = "llama", **extra: Any
) -> Path:
    """A GGUF file with the model's weights; matrices encoded, vectors in float32."""
    writer = GGUFWriter(path, architecture)
    config = model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<s>", "</s>", *(chr(ord("!") + i) for i in range(94)), "Ġ", *(f"Ġ{i}" for i in range(31))])
    writer.add_token_types([3, 3, *[1] * 126])
    writer.add_token_merges(["Ġ 1", "Ġ 2"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for key, value in extra.items():
        writer.add_tensor(f"{key}.weight", value)

    def add(name: str, weight: np.ndarray) -> None:
        if weight.ndim == 1:
            writer.add_tensor(name, weight)
        else:
            writer.add_tensor(name, quantize(weight, encoding), raw_dtype=encoding)

    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    add("token_embd.weight", weights["model.embed_tokens.weight"])
    add("output_norm.weight", weights["model.norm.weight"])
    add("output.weight", weights["lm_head.weight"])
    for layer in range(config.num_hidden_layers):
        for short, long in NAMES.items():
            for kind in ("weight", "bias"):
                weight = weights.get(f"model.layers.{layer}.{long}.{kind}")
                if weight is None:
                    continue
                if architecture == "llama" and short in {"attn_q", "attn_k"}:
                    weight = interleaved(weight, SIZES["num_heads" if short == "attn_q" else "num_kv_heads"])
                add(f"blk.{layer}.{short}.{kind}", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_llama_gguf_file_gives_the_models_logits(tmp_path: Path, drive: Callable[..., Any]) -> None:
    model = build("llama")
    path = write_gguf(tmp_path / "it.gguf", model, GGMLQuantizationType.F32)
    assert can_read(GGUFHeader.read(path))
    loaded = load_model(resolve_model(path), "float32", "cpu")
    torch.testing.assert_close(packed_logits(loaded, drive), own_logits(model), atol=1e-4, rtol=1e-4)
    assert loaded.eos_token_ids == {1}
    assert loaded.max_positions == 256


@pytest.mark.parametrize("encoding", ["F16", "Q4_0", "Q4_1", "Q8_0", "Q5_0", "BF16"])
def test_each_encoding_is_decoded_as_the_gguf_package_does(encoding: str, tmp_path: Path) -> None:
    model: Any = build("llama")
    code = GGMLQuantizationType[encoding]
    weights = read_llama(GGUFHeader.read(write_gguf(tmp_path / "it.gguf", model, code)), torch.float32)
    assert set(weights.state) == set(model.state_dict())
    for name, original in model.state_dict().items():
        if original.ndim == 1:
            torch.testing.assert_close(weights.state[name], original)
            continue
        decoded = torch.from_numpy(dequantize(quantize(original.numpy(), code), code))
        torch.testing.assert_close(weights.state[name], decoded, atol=0, rtol=0)


def test_the_fast_lane_and_transformers_agree_on_a_llama_file(tmp_path: Path) -> None:
    """Slower by far, theirs is the reference for what the file means."""
    from transformers import AutoModelForCausalLM, GgufConfig

    path = write_gguf(tmp_path / "it.gguf", build("llama"), GGMLQuantizationType.Q8_0)
    with quiet_transformers():
        theirs: Any = AutoModelForCausalLM.from_pretrained(
            tmp_path, gguf_file="it.gguf", dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
    ours = load_model(resolve_model(path), "float32", "cpu")
    for field in ("vocab_size", "hidden_size", "head_dim", "num_key_value_heads", "rms_norm_eps", "rope_parameters",
                  "max_position_embeddings", "tie_word_embeddings", "eos_token_id", "bos_token_id"):  # fmt: skip
        assert getattr(ours.config, field) == getattr(theirs.config, field), field
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours._model.state_dict()[name], tensor, atol=0, rtol=0)


def test_another_architecture_goes_through_transformers(tmp_path: Path, drive: Callable[..., Any]) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    llama = build("llama").config
    counts = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    sizes = {k: getattr(llama, k) for k in ("vocab_size", "hidden_size", "intermediate_size", *counts)}
    with quiet_transformers():
        model: Any = AutoModelForCausalLM.from_config(
            AutoConfig.for_model("qwen2", **sizes, max_position_embeddings=256)
        ).eval()
    path = write_gguf(tmp_path / "it.gguf", model, GGMLQuantizationType.F32, "qwen2")
    assert not can_read(GGUFHeader.read(path))
    loaded = load_model(resolve_model(path), "float32", "cpu")
    assert loaded.config.model_type == "qwen2"
    torch.testing.assert_close(packed_logits(loaded, drive), own_logits(model), atol=1e-4, rtol=1e-4)
    scaled = write_gguf(
        tmp_path / "s.gguf", model, GGMLQuantizationType.F32, "qwen2", rope_freqs=np.ones(8, np.float32)
    )
    with pytest.raises(Unsupported, match="scales its rotary embeddings by a tensor"):
        load_model(resolve_model(scaled), "float32", "cpu")


def test_rope_frequencies_in_the_file_are_applied(tmp_path: Path, drive: Callable[..., Any]) -> None:
    model: Any = build("llama")
    divisors = np.array([1, 1, 1, 1.5, 2, 4, 8, 8], np.float32)
    path = write_gguf(tmp_path / "it.gguf", model, GGMLQuantizationType.F32, rope_freqs=divisors)
    loaded = load_model(resolve_model(path), "float32", "cpu")
    unscaled = own_logits(model)
    model.model.rotary_emb.inv_freq.copy_(10_000.0 ** -(torch.arange(8) / 8) / torch.from_numpy(divisors))
    assert not torch.allclose(own_logits(model), unscaled, atol=1e-2)
    torch.testing.assert_close(packed_logits(loaded, drive), own_logits(model), atol=1e-4, rtol=1e-4)


def test_tied_embeddings_in_a_gguf_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "it.gguf", build("llama"), GGMLQuantizationType.F32)
    header = GGUFHeader.read(path)
    tied = GGUFHeader(path, header.metadata, tuple(t for t in header.tensors if t.name != "output.weight"))
    assert read_llama(header, torch.float32).config.tie_word_embeddings is False
    assert read_llama(tied, torch.float32).config.tie_word_embeddings is True


@pytest.mark.parametrize("key", ["llama.expert_count", "llama.rope.scaling.type", "llama.attention.sliding_window"])
def test_a_setting_that_is_not_known_leaves_the_fast_lane(key: str, tmp_path: Path) -> None:
    header = GGUFHeader.read(write_gguf(tmp_path / "it.gguf", build("llama"), GGMLQuantizationType.F32))
    assert not can_read(GGUFHeader(header.path, {**header.metadata, key: 8}, header.tensors))


# --- the user's terminal ---------------------------------------------------------------------------------------------


def test_nothing_is_written_to_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build("llama").save_pretrained(tmp_path)
    bloom = small_bloom()
    capfd.readouterr()
    load_model(resolve_model(tmp_path), "float32", "cpu")
    with pytest.raises(Unsupported):
        wrap_model(bloom)  # transformers logs that it cannot set another attention here
    assert capfd.readouterr() == ("", "")


def small_bloom() -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    with quiet_transformers():
        return AutoModelForCausalLM.from_config(AutoConfig.for_model("bloom", hidden_size=16, n_head=2, n_layer=1))


def test_quiet_is_quiet_only_inside() -> None:
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    with quiet_transformers():
        warnings.warn("nobody hears this", FutureWarning, stacklevel=1)
        assert not logging.is_progress_bar_enabled()
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (verbosity, bars)
    with pytest.warns(FutureWarning, match="all hear this"):
        warnings.warn("all hear this", FutureWarning, stacklevel=1)
