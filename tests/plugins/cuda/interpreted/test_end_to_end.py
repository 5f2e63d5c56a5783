"""A real model through the whole of Baseboard, every kernel interpreted."""

from __future__ import annotations

from baseboard import LLM, SamplingParams
from baseboard_cuda_model import expected, model_file


def test_smollm2_says_what_transformers_says() -> None:
    llm = LLM("smollm2", backend="cuda", dtype="float32", num_kv_blocks=32, max_model_len=64, max_num_batched_tokens=32)
    (output,) = llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    assert llm.stats()["num_generated_tokens"] == 3
    llm.close()
    assert output.outputs[0].text.startswith(" Paris")
    assert [output.outputs[0].token_ids] == expected(model_file(), [output.prompt_token_ids], 3)
