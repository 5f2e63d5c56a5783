"""Greedy tokens on the real model equal transformers' ``generate``, whatever the scheduler has to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from against_transformers import MANY_TOKENS, NEW_TOKENS, NUM_SHORT, greedy, tokens_of
from baseboard import SamplingParams
from baseboard.llm import LLM

GREEDY = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
OpenLLM = Callable[..., LLM]


def ids(prompts: list[list[int]]) -> list[dict[str, Any]]:
    return [{"prompt_token_ids": prompt} for prompt in prompts]


def test_one_batch(open_llm: OpenLLM, prompts: list[list[int]], expected: list[list[int]]) -> None:
    assert tokens_of(open_llm().generate(ids(prompts), GREEDY)) == expected


def test_chunked_prefill(open_llm: OpenLLM, prompts: list[list[int]], expected: list[list[int]]) -> None:
    llm = open_llm(max_num_batched_tokens=64)
    assert tokens_of(llm.generate(ids(prompts), GREEDY)) == expected
    assert llm.stats()["num_steps"] > sum(map(len, prompts)) // 64  # no step took more than its budget


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_block_sizes(open_llm: OpenLLM, prompts: list[list[int]], expected: list[list[int]], block_size: int) -> None:
    llm = open_llm(block_size=block_size, num_kv_blocks=8192 // block_size)
    assert tokens_of(llm.generate(ids(prompts[:14]), GREEDY)) == expected[:14]


def test_shared_prefixes_hit_the_cache(open_llm: OpenLLM, reference_model: Any, prompts: list[list[int]]) -> None:
    beginning = prompts[13]  # 200 tokens
    family = [beginning + tail for tail in ([5], [6, 7, 8], prompts[9], prompts[11])]
    llm = open_llm()
    cold = llm.generate(ids([family[0]]), GREEDY)[0]
    warm = llm.generate(ids(family), GREEDY)
    assert cold.num_cached_tokens == 0
    # Whole blocks of 16 out of the 200 common tokens; the prompt that ran before shares all its full blocks.
    assert [output.num_cached_tokens for output in warm] == [192, 192, 192, 192]
    assert tokens_of(warm) == greedy(reference_model, family, NEW_TOKENS)


@pytest.mark.parametrize(("mode", "num_host_blocks"), [("recompute", 0), ("swap", 64), ("auto", 64)])
def test_a_pool_too_small_for_all(
    open_llm: OpenLLM,
    prompts: list[list[int]],
    continued: list[list[int]],
    mode: str,
    num_host_blocks: int,
) -> None:
    short = prompts[:NUM_SHORT]  # 173 tokens, and 24 more each: 38 blocks of 16 at the end
    llm = open_llm(num_kv_blocks=13, num_host_blocks=num_host_blocks, preemption=mode)
    assert tokens_of(llm.generate(ids(short), GREEDY.replace(max_tokens=MANY_TOKENS))) == continued
    assert llm.stats()["num_preemptions"] > 0
    if mode == "swap":
        assert llm.stats()["num_swaps_out"] > 0
        assert llm.stats()["num_free_host_blocks"] == num_host_blocks


def test_three_greedy_samples_are_alike(open_llm: OpenLLM, prompts: list[list[int]], expected: list[list[int]]) -> None:
    outputs = open_llm().generate(ids(prompts[3:12]), GREEDY.replace(n=3, seed=11))
    for output, tokens in zip(outputs, expected[3:12], strict=True):
        assert [sample.token_ids for sample in output.outputs] == [tokens] * 3
        assert [sample.index for sample in output.outputs] == [0, 1, 2]


def test_seeded_samples_do_not_depend_on_company(open_llm: OpenLLM, prompts: list[list[int]]) -> None:
    drawn = SamplingParams(temperature=0.8, top_p=0.95, n=3, seed=7, max_tokens=20, ignore_eos=True)
    alone = open_llm().generate(ids([prompts[8]]), drawn)[0]
    samples = [sample.token_ids for sample in alone.outputs]
    assert len({tuple(sample) for sample in samples}) == 3

    crowd = prompts[:12]
    params = [drawn if at == 8 else GREEDY.replace(max_tokens=25) for at in range(12)]
    tight = open_llm(num_kv_blocks=13, num_host_blocks=8, preemption="swap", max_num_batched_tokens=48)
    outputs = tight.generate(ids(crowd), params)
    assert [sample.token_ids for sample in outputs[8].outputs] == samples
    assert tight.stats()["num_preemptions"] > 0


def test_one_sample_is_the_first_of_three(open_llm: OpenLLM, prompts: list[list[int]]) -> None:
    drawn = SamplingParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True)
    llm = open_llm()
    one = llm.generate(ids([prompts[5]]), drawn)[0]
    three = llm.generate(ids([prompts[5]]), drawn.replace(n=3))[0]
    assert one.outputs[0].token_ids == three.outputs[0].token_ids


def test_logprobs_are_those_of_transformers(open_llm: OpenLLM, reference_model: Any, prompts: list[list[int]]) -> None:
    import torch

    prompt = prompts[11]
    llm = open_llm(max_num_batched_tokens=16)
    params = GREEDY.replace(max_tokens=4, logprobs=3, prompt_logprobs=2)
    output = llm.generate(ids([prompt]), params)[0]
    tokens = output.outputs[0].token_ids
    with torch.inference_mode():
        logits = reference_model(torch.tensor([prompt + tokens])).logits[0].double()
    truth = logits.log_softmax(-1)
    assert output.outputs[0].logprobs is not None
    for at, (token, told) in enumerate(zip(tokens, output.outputs[0].logprobs, strict=True), len(prompt) - 1):
        assert told[token].logprob == pytest.approx(float(truth[at, token]), abs=1e-3)
        assert list(told)[:3] == truth[at].topk(3).indices.tolist()
        assert told[token].rank == 1
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(prompt)
    for at, (token, told) in enumerate(zip(prompt[1:], output.prompt_logprobs[1:], strict=True)):
        assert told is not None
        assert told[token].logprob == pytest.approx(float(truth[at, token]), abs=1e-3)
        assert told[token].rank == 1 + int((truth[at] > truth[at, token]).sum())


def test_prompt_logprobs_survive_a_warm_cache(open_llm: OpenLLM, prompts: list[list[int]]) -> None:
    llm = open_llm()
    params = GREEDY.replace(max_tokens=2, prompt_logprobs=0)
    cold = llm.generate(ids([prompts[12]]), params)[0]
    warm = llm.generate(ids([prompts[12]]), params)[0]
    assert cold.prompt_logprobs is not None
    assert warm.prompt_logprobs is not None
    assert warm.num_cached_tokens == 0  # every position's logits are wanted, so every position is computed
    for told, again in zip(cold.prompt_logprobs[1:], warm.prompt_logprobs[1:], strict=True):
        assert told is not None
        assert again is not None
        assert {t: v.logprob for t, v in told.items()} == pytest.approx(
            {t: v.logprob for t, v in again.items()}, abs=1e-4
        )


def test_resetting_the_prefix_cache_wipes_the_device(open_llm: OpenLLM, prompts: list[list[int]]) -> None:
    llm = open_llm()
    llm.generate(ids([prompts[13]]), GREEDY)
    llm.reset_prefix_cache()
    again = llm.generate(ids([prompts[13]]), GREEDY)[0]
    assert again.num_cached_tokens == 0
