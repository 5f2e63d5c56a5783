"""Tiny models through the whole engine on the NPU: the tokens are those of the reference backend in the same dtype."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from baseboard import SamplingParams
from baseboard.contract import BackendFault, MemoryShortage, Unsupported
from baseboard.engine.engine import Prompt
from baseboard.engine.results import RequestOutput
from baseboard.llm import LLM
from baseboard.runtime.loader import wrap_model
from baseboard.runtime.model_quiet import quiet_transformers
from baseboard_ascend_standin.emulator.dispatch import EmulatedNpu
from baseboard_ascend_standin.library import StandIn
from families import VOCAB_SIZE, randomise

FUSED = "npu::npu_fused_infer_attention_score"
WITH_SINKS = "npu::npu_fused_infer_attention_score_v2"
PAGED = "atb::_npu_paged_attention"

#: Each with the attention operators that must have run.
MODELS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "llama": ({"head_dim": 128}, {FUSED}),
    # Heads of 64, 9 on 3: SmolLM2's shape.
    "smollm2": (
        {"model_type": "llama", "hidden_size": 72, "head_dim": 64, "num_attention_heads": 9, "num_key_value_heads": 3},
        {PAGED},
    ),
    "mistral": ({"head_dim": 128, "sliding_window": 8}, {FUSED}),
    "gpt_oss": (
        {
            "head_dim": 128, "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        {WITH_SINKS, FUSED},  # the plain one only measures the band
    ),
    "qwen3": ({"head_dim": 16}, {PAGED}),
}  # fmt: skip
LENGTHS = (1, 8, 15, 16, 17, 40)
TRIES = 10
GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
MANY = GREEDY.replace(max_tokens=12)
#: 97 tokens of prompts and 72 more do not fit 8 blocks of 16.
TIGHT: dict[str, Any] = {"num_kv_blocks": 8}
SWAPPED: dict[str, Any] = TIGHT | {"preemption": "swap", "num_host_blocks": 24}
RECOMPUTED: dict[str, Any] = TIGHT | {"preemption": "recompute"}


def build(name: str, dtype: torch.dtype, **settings: Any) -> Any:
    common = {
        "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
    }  # fmt: skip
    settings = common | settings
    config = AutoConfig.for_model(settings.pop("model_type", name), **settings)
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    return randomise(model, 3).to(dtype)


@cache
def drawn(name: str) -> tuple[RequestOutput, ...]:
    """Random prompts, some of each length, and what float32 makes of them."""
    generator = torch.Generator().manual_seed(5)
    asked = [
        {"prompt_token_ids": torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()}
        for length in LENGTHS
        for _ in range(TRIES)
    ]
    with open_llm(build(name, torch.float32, **MODELS[name][0]), "reference", "float32", num_kv_blocks=640) as llm:
        return tuple(llm.generate(asked, MANY.replace(logprobs=2)))


def prompts(name: str, count: int) -> list[dict[str, Any]]:
    """Of each length the one whose first ``count`` answers in float32 stand out the most.

    Two backends round differently, so tokens can only be compared where they do not hang on rounding.
    """
    outputs = drawn(name)
    groups = [outputs[at : at + TRIES] for at in range(0, len(outputs), TRIES)]
    best = [max(group, key=lambda output: smallest_gap(output, count)) for group in groups]
    return [{"prompt_token_ids": output.prompt_token_ids} for output in best]


def smallest_gap(output: RequestOutput, count: int) -> float:
    """Between the log-probabilities of the best token and the next, over ``count`` steps."""
    steps = output.outputs[0].logprobs
    assert steps is not None
    values = [sorted((token.logprob for token in step.values()), reverse=True) for step in steps[:count]]
    return min(value[0] - value[1] for value in values)


def tokens_of(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def open_llm(model: Any, backend: str, dtype: str = "bfloat16", **settings: Any) -> LLM:
    small = {
        "block_size": 16,
        "num_kv_blocks": 40,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 24,
        "max_model_len": 64,
    }
    return LLM(wrap_model(model), backend=backend, dtype=dtype, **(small | settings))  # pyright: ignore[reportArgumentType]


@cache
def expected(name: str, dtype: str, count: int) -> list[list[int]]:
    """By the reference backend, on the CPU."""
    with open_llm(build(name, getattr(torch, dtype), **MODELS[name][0]), "reference", dtype) as llm:
        return tokens_of(llm.generate(prompts(name, count), GREEDY.replace(max_tokens=count)))


def on_npu(name: str, dtype: str = "bfloat16") -> Any:
    return build(name, getattr(torch, dtype), **MODELS[name][0]).to("npu")


@pytest.mark.parametrize(
    ("name", "dtype", "graphs"),
    [
        *((name, dtype, True) for name in MODELS for dtype in ("bfloat16", "float16")),
        ("llama", "bfloat16", False),
        ("smollm2", "bfloat16", False),
    ],
)
def test_tokens_are_those_of_the_reference(npu: EmulatedNpu, name: str, dtype: str, graphs: bool) -> None:
    asked, truth = prompts(name, 5), expected(name, dtype, 5)
    with open_llm(on_npu(name, dtype), "ascend_npu", dtype, enable_graphs=graphs) as llm:
        assert tokens_of(llm.generate(asked, GREEDY)) == truth
        warm = llm.generate(asked, GREEDY)  # whole blocks of 16 but for the last token come from the prefix cache
        assert tokens_of(warm) == truth
        assert [output.num_cached_tokens for output in warm] == [(length - 1) // 16 * 16 for length in LENGTHS]
        assert llm.stats()["num_steps"] > sum(LENGTHS) // 24  # prompts went in chunks
        gathered = (name, dtype) == ("gpt_oss", "float16")  # the operator's sinks are bfloat16
        assert (llm.stats()["num_replayed_steps"] > 4) == (graphs and not gathered)
    if dtype == "bfloat16":
        assert {each for each in npu.log if "attention" in each} == MODELS[name][1]
    assert "npu::npu_rms_norm" in npu.log


@pytest.mark.parametrize(
    ("name", "mode", "late"),
    [
        ("llama", "swap", True),
        ("llama", "recompute", False),
        ("smollm2", "swap", False),
        ("smollm2", "recompute", True),
    ],
)
def test_preemption_changes_nothing(standin: StandIn, name: str, mode: str, late: bool) -> None:
    asked, truth = prompts(name, 12), expected(name, "bfloat16", 12)
    with (
        standin.late() if late else nullcontext(),
        open_llm(on_npu(name), "ascend_npu", **(SWAPPED if mode == "swap" else RECOMPUTED)) as llm,
    ):
        assert tokens_of(llm.generate(asked, MANY)) == truth
        stats = llm.stats()
    assert stats["num_replayed_steps"] > 0
    assert stats["num_preemptions"] > 0
    assert (stats["num_swaps_out"] > 0) == (mode == "swap")


def test_a_plugin_that_waits_for_no_swap_gives_wrong_tokens(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    from baseboard_ascend_npu.swapping import StreamTransfer

    monkeypatch.setattr(StreamTransfer, "wait_on_stream", lambda self: None)
    with standin.late(), open_llm(on_npu("llama"), "ascend_npu", **SWAPPED) as llm:
        assert tokens_of(llm.generate(prompts("llama", 12), MANY)) != expected("llama", "bfloat16", 12)


def test_the_pool_is_sized_by_the_memory_there_is() -> None:
    large = {"max_num_seqs": 256, "max_num_batched_tokens": 256, "max_model_len": 256, "enable_graphs": False}
    with open_llm(on_npu("llama"), "ascend_npu", num_kv_blocks=None, memory_fraction=0.03, **large) as llm:
        assert tokens_of(llm.generate(prompts("llama", 5), GREEDY)) == expected("llama", "bfloat16", 5)
        blocks = llm.stats()["num_kv_blocks"]
    a_block = 3 * 2 * 16 * 2 * 128 * 2
    assert 0.5 < blocks * a_block / (0.03 * (4 << 30)) < 1


def test_a_model_with_softcap_is_refused_when_it_is_loaded() -> None:
    model = build("gemma2", torch.bfloat16, head_dim=128, query_pre_attn_scalar=16, attn_logit_softcapping=5.0)
    with pytest.raises(
        Unsupported, match=r"ascend_npu cannot run .*softcap 5\.0 is not supported: no attention operator"
    ):
        open_llm(model.to("npu"), "ascend_npu")


def test_a_device_lost_in_a_step_ends_every_request_with_the_reason(standin: StandIn) -> None:
    with open_llm(on_npu("llama"), "ascend_npu") as llm:
        engine = llm.built.engine
        for prompt in prompts("llama", 5):
            engine.add(Prompt(tuple(prompt["prompt_token_ids"])), GREEDY)
        engine.step()
        with standin.lost():
            ended = engine.step().finished
            assert len(ended) == len(LENGTHS)
            assert {output.outputs[0].finish_reason for output in ended} == {"error"}
            assert all("CANN error 507010" in str(output.outputs[0].error) for output in ended)
            with pytest.raises(BackendFault, match="507010"):
                llm.generate([{"prompt_token_ids": [1, 2]}], GREEDY)
            llm.close()


@pytest.mark.usefixtures("nothing_kept")
def test_a_host_pool_that_the_driver_does_not_pin(standin: StandIn) -> None:
    model = on_npu("llama")
    standin.set_pinned_capacity(standin.pinned_used() + (1 << 20))
    try:
        with pytest.raises(MemoryShortage, match=r"a host pool of 500 blocks .* refused to pin .* num_host_blocks"):
            open_llm(model, "ascend_npu", num_host_blocks=500)
    finally:
        standin.set_pinned_capacity(64 << 30)


def test_a_pool_larger_than_the_device() -> None:
    with pytest.raises(MemoryShortage, match=r"the NPU has 4,294,967,296 bytes .* lower num_kv_blocks"):
        open_llm(on_npu("llama"), "ascend_npu", num_kv_blocks=120_000)


def test_more_sequences_than_the_operators_take() -> None:
    with pytest.raises(Unsupported, match=r"max_num_seqs=5000 is more than ascend_npu's 4096; lower it"):
        LLM("smollm2", backend="ascend_npu", dtype="bfloat16", max_num_seqs=5000)
