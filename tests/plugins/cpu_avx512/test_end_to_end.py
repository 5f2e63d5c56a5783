"""The real model: what it says in float32 is what it says on the reference backend."""

from __future__ import annotations

import pytest

from baseboard import SamplingParams
from baseboard.llm import LLM
from baseboard.runtime.loader import load_model
from baseboard.runtime.model_loaded import LoadedModel
from baseboard.runtime.sources import resolve_model
from plugins.cpu_avx512.conftest import LEVELS

LENGTHS = (1, 7, 33, 150)


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    return load_model(resolve_model("smollm2"), "float32", "cpu")


def generate(model: LoadedModel, backend: str, min_preemptions: int = 0, **settings: object) -> list[list[int]]:
    llm = LLM(model, **{"backend": backend, "dtype": "float32", "num_kv_blocks": 40} | settings)
    prompts = [
        {"prompt_token_ids": [(7 * i + 13 * n + 5) % 40000 for i in range(length)]} for n, length in enumerate(LENGTHS)
    ]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    assert llm.stats()["num_preemptions"] >= min_preemptions
    llm.close()
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module")
def expected(smollm2: LoadedModel) -> list[list[int]]:
    return generate(smollm2, "reference")


@pytest.mark.parametrize("level", [LEVELS[0], LEVELS[-1]])
def test_greedy_tokens_are_those_of_the_reference(smollm2, expected, level) -> None:
    assert generate(smollm2, f"cpu_avx512:{level}") == expected


def test_in_chunks_and_with_little_memory_too(smollm2, expected) -> None:
    """Prompts in chunks of 64 tokens; so few blocks that sequences are swapped out and in."""
    few = {"num_kv_blocks": 27, "num_host_blocks": 40, "block_size": 8, "preemption": "swap"}
    chunks = {"max_num_batched_tokens": 64}
    assert generate(smollm2, "cpu_avx512", min_preemptions=1, **few, **chunks) == expected


def test_auto_takes_it(smollm2) -> None:
    llm = LLM(smollm2, dtype="float32", num_kv_blocks=16)
    assert llm.built.backend.device.backend == "cpu_avx512"
    llm.close()
