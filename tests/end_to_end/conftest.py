"""The real model once per session, and what transformers itself generates with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from against_transformers import MANY_TOKENS, NEW_TOKENS, NUM_SHORT, greedy
from baseboard.llm import LLM
from baseboard.runtime.loader import load_model
from baseboard.runtime.model_loaded import LoadedModel
from baseboard.runtime.model_quiet import quiet_transformers
from baseboard.runtime.sources import resolve_model

LENGTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65, 200, 700, 1500)


@pytest.fixture(scope="session", autouse=True)
def threads() -> None:
    torch.set_num_threads(int(os.environ.get("BASEBOARD_TEST_THREADS", "2")))


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """SmolLM2 in float32, loaded by us."""
    return load_model(resolve_model("smollm2"), "float32", "cpu")


@pytest.fixture(scope="session")
def prompts(smollm2: LoadedModel) -> list[list[int]]:
    """Prompts of 1 to 1,500 tokens, each from its own place in a long text."""
    words = ["the", "river", "ran", "past", "a", "small", "stone", "house", "where", "seven", "people", "kept", "bees"]
    text = " ".join(f"{words[(i * i + 3 * i) % len(words)]} {words[i % 7]} {i}," for i in range(1200))
    assert smollm2.tokenizer is not None
    ids = smollm2.tokenizer.encode(text)
    return [ids[37 * at : 37 * at + length] for at, length in enumerate(LENGTHS)]


@pytest.fixture(scope="session")
def reference_model() -> Any:
    """The same file read by transformers alone."""
    from transformers import AutoModelForCausalLM, GgufConfig

    source = resolve_model("smollm2")
    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(
            source.path,
            gguf_file=source.gguf_file,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )
    return model.eval()


@pytest.fixture(scope="session")
def continued(reference_model: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy continuations of the short prompts by transformers' ``generate``, ``MANY_TOKENS`` each."""
    return greedy(reference_model, prompts[:NUM_SHORT], MANY_TOKENS)


@pytest.fixture(scope="session")
def expected(reference_model: Any, prompts: list[list[int]], continued: list[list[int]]) -> list[list[int]]:
    """Greedy continuations of all prompts by transformers' ``generate``, ``NEW_TOKENS`` each."""
    return [tokens[:NEW_TOKENS] for tokens in continued] + greedy(reference_model, prompts[NUM_SHORT:], NEW_TOKENS)


@pytest.fixture
def open_llm(smollm2: LoadedModel) -> Iterator[Callable[..., LLM]]:
    """Engines over the one loaded model; closed, with nothing left running, after the test."""
    opened: list[LLM] = []

    def make(**settings: Any) -> LLM:
        for earlier in opened:
            earlier.close()
        defaults = {"dtype": "float32", "backend": "reference", "num_kv_blocks": 512, "max_num_batched_tokens": 2048}
        opened.append(LLM(smollm2, **(defaults | settings)))
        return opened[-1]

    yield make
    for llm in opened:
        llm.built.engine.scheduler.check()
        assert llm.stats()["num_running"] == llm.stats()["num_waiting"] == llm.stats()["num_swapped"] == 0
        assert llm.stats()["num_free_kv_blocks"] == llm.stats()["num_kv_blocks"]
        llm.close()
