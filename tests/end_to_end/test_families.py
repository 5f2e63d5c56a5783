"""Every decoder family, run by the whole engine, says what transformers says: tokens, and log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from against_transformers import greedy, tokens_of
from baseboard import SamplingParams
from baseboard.contract import RankedToken, Unsupported
from baseboard.engine.results import RequestOutput
from baseboard.llm import LLM
from baseboard.runtime.loader import wrap_model
from baseboard.runtime.model_quiet import quiet_transformers
from families import FAMILIES, VOCAB_SIZE, build

#: Around the window of 8 tokens and the edges of blocks of 8.
LENGTHS = (1, 7, 8, 9, 15, 16, 17, 30)
NEW_TOKENS = 5
#: One of each kind: plain, two groups of layers with softcap, two groups with sinks and experts, all windowed, experts.
REPRESENTATIVE = ("llama", "gemma2", "gpt_oss", "mistral", "qwen3_moe")
GREEDY = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=20)


@dataclass(frozen=True)
class Truth:
    """What transformers makes of the prompts, each by itself."""

    tokens: list[list[int]]
    logprobs: list[torch.Tensor]  #: of each prompt and its tokens: ``[length, V]``, float64


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small only lose by being shared out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in LENGTHS]


def truth(name: str, texts: Sequence[list[int]], new_tokens: int = NEW_TOKENS) -> Truth:
    model = build(name)
    tokens = greedy(model, texts, new_tokens)
    assert {len(each) for each in tokens} == {new_tokens}
    logprobs = []
    for text, more in zip(texts, tokens, strict=True):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([text + more]), use_cache=False).logits[0]
        logprobs.append(logits.double().log_softmax(-1))
    return Truth(tokens, logprobs)


def open_llm(name: str, **settings: Any) -> LLM:
    small = {"block_size": 8, "num_kv_blocks": 48, "max_num_seqs": 8, "max_num_batched_tokens": 7, "max_model_len": 48}
    return LLM(wrap_model(build(name)), backend="reference", dtype="float32", **(small | settings))


def ids(texts: Sequence[list[int]]) -> list[dict[str, Any]]:
    return [{"prompt_token_ids": text} for text in texts]


def check_outputs(outputs: Sequence[RequestOutput], expected: Truth) -> None:
    """The log-probabilities of each output's 20 most likely tokens are those of the truth."""
    assert tokens_of(outputs) == expected.tokens
    for output, logprobs in zip(outputs, expected.logprobs, strict=True):
        told = output.outputs[0].logprobs
        assert told is not None
        first = len(output.prompt_token_ids) - 1
        assert_same(told, logprobs[first:-1])


def check_prompts(outputs: Sequence[RequestOutput], expected: Truth) -> None:
    for output, logprobs in zip(outputs, expected.logprobs, strict=True):
        told = output.prompt_logprobs
        assert told is not None
        assert told[0] is None
        assert_same([at for at in told if at is not None], logprobs[: len(output.prompt_token_ids) - 1])


def assert_same(told: Sequence[Any], logprobs: torch.Tensor) -> None:
    assert len(told) == len(logprobs)
    for candidates, row in zip(told, logprobs, strict=True):
        found: list[RankedToken] = list(candidates.values())
        assert len(found) >= 20
        theirs = row[[token.token_id for token in found]]
        ours = torch.tensor([token.logprob for token in found], dtype=torch.float64)
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_and_logprobs_are_those_of_transformers(name: str) -> None:
    texts = prompts()
    expected = truth(name, texts)
    with open_llm(name) as llm:
        cold = llm.generate(ids(texts), GREEDY.replace(prompt_logprobs=20))
        check_outputs(cold, expected)
        check_prompts(cold, expected)
        assert llm.stats()["num_steps"] > sum(LENGTHS) // 7  # chunks of at most 7 tokens

        warm = llm.generate(ids(texts), GREEDY)
        check_outputs(warm, expected)
        # All full blocks of 8 but for what has to be computed: the last token.
        assert [output.num_cached_tokens for output in warm] == [(length - 1) // 8 * 8 for length in LENGTHS]


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_preemption_changes_nothing(name: str, mode: str) -> None:
    texts = prompts()
    expected = truth(name, texts, new_tokens=12)
    # 103 tokens of prompts and 96 more would take 29 blocks of 8.
    host = 24 if mode == "swap" else 0
    with open_llm(name, num_kv_blocks=12, num_host_blocks=host, preemption=mode, max_num_batched_tokens=16) as llm:
        check_outputs(llm.generate(ids(texts), GREEDY.replace(max_tokens=12)), expected)
        stats = llm.stats()
    assert stats["num_preemptions"] > 0
    assert (stats["num_swaps_out"] > 0) == (mode == "swap")


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_block_sizes(name: str, block_size: int) -> None:
    texts = prompts()
    with open_llm(name, block_size=block_size, num_kv_blocks=320 // block_size) as llm:
        check_outputs(llm.generate(ids(texts), GREEDY), truth(name, texts))


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_models_saved_to_a_folder(name: str, tmp_path: Path) -> None:
    texts = prompts()
    build(name).save_pretrained(tmp_path)
    settings = {"block_size": 8, "num_kv_blocks": 48, "max_num_seqs": 8, "max_num_batched_tokens": 32}
    with LLM(tmp_path, backend="reference", dtype="float32", **settings) as llm:
        check_outputs(llm.generate(ids(texts), GREEDY), truth(name, texts))


@pytest.mark.parametrize(
    ("model_type", "settings", "obstacle"),
    [
        ("falcon", {"num_attention_heads": 4}, "falcon: "),
        ("mamba", {"state_size": 8}, "mamba: it keeps a recurrent state"),
        ("rwkv", {}, "rwkv: "),
    ],
)
def test_families_that_cannot_be_run_are_refused(
    model_type: str, settings: dict[str, Any], obstacle: str, tmp_path: Path
) -> None:
    config = AutoConfig.for_model(model_type, vocab_size=64, hidden_size=32, num_hidden_layers=2, **settings)
    with quiet_transformers():
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    with pytest.raises(Unsupported) as refused:
        LLM(tmp_path, backend="reference", dtype="float32", num_kv_blocks=4)
    assert any(reason.startswith(obstacle) for reason in refused.value.reasons), refused.value.reasons
