"""Every decoder family runs unchanged on packed tokens: logits equal transformers' own, facts the configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from baseboard.contract import KVCacheSpec
from baseboard.runtime.loader import wrap_model
from families import FAMILIES, VOCAB_SIZE, WINDOW, build

#: What each step computes of each sequence: whole prompts, chunks, decodes and late arrivals in one batch.
SCHEDULE = (
    {"a": 11, "b": 5},
    {"a": 1, "b": 13},
    {"a": 1, "c": 6, "b": 3},
    {"c": 1, "b": 1, "a": 7},
    {"b": 1, "c": 1, "a": 1},
)
LENGTHS = {"a": 21, "b": 23, "c": 8}

WINDOWED = {"mistral", "phi3", "starcoder2", "mixtral"}
MIXED = {"qwen2", "gemma2", "gemma3_text", "gpt_oss", "olmo3", "cohere2", "exaone4"}


def prompts(seed: int) -> dict[str, list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randint(VOCAB_SIZE, (n,), generator=generator).tolist() for name, n in LENGTHS.items()}


def own_logits(model: Any, token_ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_steps_give_the_models_own_logits(name: str, drive: Callable[..., Any]) -> None:
    model, texts = build(name), prompts(7)
    expected = {key: own_logits(model, text) for key, text in texts.items()}
    driver = drive(wrap_model(model))
    for key, text in texts.items():
        driver.add(key, text)
    computed: dict[str, list[torch.Tensor]] = {key: [] for key in texts}
    for counts in SCHEDULE:
        for key, logits in driver.step(counts).items():
            computed[key].append(logits)
    for key, logits in expected.items():
        torch.testing.assert_close(torch.cat(computed[key]), logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_windows_are_found_layer_by_layer(name: str) -> None:
    windows = [layer.attention.sliding_window for layer in wrap_model(build(name)).layers]
    expected = [WINDOW] * 3 if name in WINDOWED else [WINDOW, None, WINDOW] if name in MIXED else [None] * 3
    assert windows == expected


def test_scale_softcap_and_sinks_are_found() -> None:
    assert wrap_model(build("granite")).layers[1].attention.scale == pytest.approx(0.3)
    assert wrap_model(build("llama")).layers[1].attention.scale == pytest.approx(0.25)
    assert wrap_model(build("opt")).layers[1].attention.scale == 1.0  # OPT scales its queries itself
    assert wrap_model(build("gemma2")).layers[2].attention.softcap == 5.0
    assert wrap_model(build("llama")).layers[2].attention.softcap is None
    model: Any = build("gpt_oss")
    for layer, block in zip(wrap_model(model).layers, model.model.layers, strict=True):
        assert layer.attention.sinks == pytest.approx(block.self_attn.sinks.tolist())


def test_head_counts_and_sizes_are_found() -> None:
    facts = wrap_model(build("gpt_bigcode")).layers[0]
    assert (facts.attention.num_heads, facts.num_kv_heads, facts.head_size, facts.head_size_v) == (4, 1, 16, 16)
    facts = wrap_model(build("qwen3")).layers[2]
    assert (facts.layer_idx, facts.attention.num_heads, facts.num_kv_heads, facts.head_size) == (2, 4, 2, 16)


def test_layers_that_are_stored_alike_share_a_group() -> None:
    sliding, full = wrap_model(build("gemma2")).groups(16, "int8")
    assert (sliding.layers, full.layers) == ((0, 2), (1,))
    assert sliding.spec == KVCacheSpec(2, 2, 16, 16, "float32", 16, "int8", WINDOW)
    assert full.spec == KVCacheSpec(1, 2, 16, 16, "float32", 16, "int8", None)
    (only,) = wrap_model(build("llama")).groups(32)
    assert (only.layers, only.spec.kv_dtype, only.spec.block_size) == ((0, 1, 2), "auto", 32)


def test_a_window_as_long_as_the_model_is_no_window() -> None:
    model = build("mistral")
    model.config.max_position_embeddings = WINDOW
    assert [layer.attention.sliding_window for layer in wrap_model(model).layers] == [None, None, None]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_most_likely_token_stands_out(name: str) -> None:
    """Tests that compare greedy texts rely on it: two orders of summation never choose differently."""
    logits = own_logits(build(name), prompts(3)["b"])
    first, second = logits.topk(2).values.unbind(-1)
    assert (first - second).median() > 0.1
    assert logits.argmax(-1).unique().numel() > 5
