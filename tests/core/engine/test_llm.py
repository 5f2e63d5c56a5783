"""``LLM`` itself: what it takes, what it gives back, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from baseboard import SamplingParams
from baseboard.contract import BackendUnavailable
from baseboard.llm import LLM
from core.engine.watching import Watching

OpenLLM = Callable[..., LLM]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
HELLO = [{"role": "user", "content": "hello"}]


def test_all_ways_to_give_a_prompt_are_one(open_llm: OpenLLM) -> None:
    llm = open_llm()
    ids = [ord(letter) for letter in "abc"]
    ways: list[Any] = [
        "abc",
        {"prompt": "abc"},
        {"prompt_token_ids": ids},
        {"prompt_token_ids": tuple(ids)},
        {"prompt_token_ids": np.array(ids)},
        {"prompt_token_ids": torch.tensor(ids)},
    ]
    outputs = llm.generate(ways, GREEDY)
    assert {tuple(output.outputs[0].token_ids) for output in outputs} == {tuple(outputs[0].outputs[0].token_ids)}
    assert [output.prompt for output in outputs] == ["abc", "abc", None, None, None, None]
    assert all(output.prompt_token_ids == ids for output in outputs)
    alone = llm.generate("abc", GREEDY)
    assert alone[0].outputs[0].text == outputs[0].outputs[0].text == "".join(map(chr, alone[0].outputs[0].token_ids))
    assert llm.generate([]) == []


def test_one_set_of_parameters_for_each_prompt(open_llm: OpenLLM) -> None:
    lengths = [3, 1, 5]
    outputs = open_llm().generate(["a", "b", "c"], [GREEDY.replace(max_tokens=length) for length in lengths])
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths
    assert [output.prompt for output in outputs] == ["a", "b", "c"]


def test_chat_is_generate_on_the_template(open_llm: OpenLLM) -> None:
    llm = open_llm()
    written_out = llm.generate("u:hello;a:", GREEDY)[0]
    (one,) = llm.chat(HELLO, GREEDY)
    both = llm.chat([HELLO, [*HELLO, {"role": "assistant", "content": "x"}]], GREEDY)
    assert one.prompt == both[0].prompt == "u:hello;a:"
    assert both[1].prompt == "u:hello;a:x;a:"
    assert one.outputs == both[0].outputs == written_out.outputs


@pytest.mark.parametrize("stop", [(), "stop"])
def test_a_stream_is_the_whole_text_in_pieces(open_llm: OpenLLM, stop: str) -> None:
    llm = open_llm()
    (whole,) = llm.chat(HELLO, GREEDY)
    params = GREEDY.replace(stop=whole.outputs[0].text[4:6]) if stop else GREEDY
    (expected,) = llm.chat(HELLO, params)
    deltas = list(llm.stream_chat(HELLO, params))
    assert "".join(delta.text for delta in deltas) == expected.outputs[0].text
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [expected.outputs[0].finish_reason]
    assert deltas[-1].finish_reason == ("stop" if stop else "length")


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_closing_a_stream_ends_the_request(open_llm: OpenLLM, taken: int) -> None:
    llm = open_llm()
    stream = llm.stream_chat(HELLO, GREEDY.replace(max_tokens=100))
    for _ in range(taken):
        next(stream)
    assert llm.stats()["num_running"] == bool(taken)
    stream.close()
    assert llm.stats()["num_running"] == llm.stats()["num_waiting"] == 0
    assert llm.stats()["num_free_kv_blocks"] == 32
    assert llm.stats()["num_generated_tokens"] == taken
    assert len(llm.chat(HELLO, GREEDY)[0].outputs[0].token_ids) == 8


def test_streams_and_a_batch_at_the_same_time(open_llm: OpenLLM) -> None:
    """Each of them steps the engine for all; everybody gets what is their own, and all of it."""
    llm = open_llm()
    (expected,) = llm.chat(HELLO, GREEDY)
    streams = [llm.stream_chat(HELLO, GREEDY) for _ in range(2)]
    texts = [next(stream).text for stream in streams]
    assert llm.generate("u:hello;a:", GREEDY)[0].outputs == expected.outputs
    for stream in streams:
        texts.extend(delta.text for delta in stream)
    first, second, *rest = texts
    assert first + "".join(rest[:7]) == second + "".join(rest[7:]) == expected.outputs[0].text


def test_the_counters(open_llm: OpenLLM) -> None:
    llm = open_llm()
    assert set(llm.stats()) >= {
        "num_preemptions",
        "num_prompt_tokens",
        "num_generated_tokens",
        "prefix_queries",
        "prefix_hits",
    }
    llm.generate(["abcdefghij", "x"], GREEDY)
    assert llm.stats() == {
        "num_requests": 2,
        "num_finished": 2,
        "num_steps": 8,
        "num_replayed_steps": 0,
        "num_preemptions": 0,
        "num_swaps_out": 0,
        "num_prompt_tokens": 11,
        "num_generated_tokens": 16,
        "num_policy_faults": 0,
        "num_scheduled_tokens": 11 + 14,  # the last token of each is never computed
        "num_recomputed_tokens": 0,
        "prefix_queries": 11,
        "prefix_hits": 0,
        "prefix_evictions": 0,
        "num_kv_blocks": 32,
        "num_free_kv_blocks": 32,
        "num_host_blocks": 0,
        "num_free_host_blocks": 0,
        "num_running": 0,
        "num_waiting": 0,
        "num_swapped": 0,
        "num_parked": 0,
        "num_in_flight": 0,
        "num_cached_blocks": 4 + 2,  # of 17 and of 8 computed tokens
        "num_busy_steps": 7,  # how long the last one took shows when the next is planned
        "num_drafts": 0,
        "num_drafts_accepted": 0,
        "num_stale_results": 0,
    }
    (again,) = llm.generate("abcdefghij", GREEDY)
    assert again.num_cached_tokens == 8  # two full blocks of 4
    assert (llm.stats()["prefix_queries"], llm.stats()["prefix_hits"]) == (21, 8)


def test_progress_is_told_of_every_stage_and_step(open_llm: OpenLLM) -> None:
    watching = Watching()
    llm = open_llm(progress=watching)
    assert any("32 KV blocks of 4 tokens" in stage for stage in watching.stages)
    llm.generate(["a", "b"], [GREEDY.replace(max_tokens=2), GREEDY.replace(max_tokens=4)])
    assert watching.batches == [2]
    assert [finished for finished, _ in watching.steps] == [0, 1, 1, 2]
    assert [stats["num_generated_tokens"] for _, stats in watching.steps] == [2, 4, 5, 6]


def test_an_interrupt_ends_the_batch_and_leaves_an_engine_that_works(open_llm: OpenLLM) -> None:
    llm = open_llm(progress=Watching(error_at=3), max_num_seqs=2)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["one", "two", "three"], GREEDY)
    assert llm.stats()["num_running"] == llm.stats()["num_waiting"] == 0
    assert llm.stats()["num_free_kv_blocks"] == 32
    assert len(llm.generate("one", GREEDY)[0].outputs[0].token_ids) == 8


def test_closing_gives_the_device_back(open_llm: OpenLLM) -> None:
    llm = open_llm()
    with llm as same:
        assert same is llm
        llm.generate("a", GREEDY)
    llm.close()  # a second time
    with pytest.raises(BackendUnavailable, match="closed"):
        llm.built.backend.hook.synchronize()


def test_requests_without_a_seed_draw_differently_and_repeatably(open_llm: OpenLLM) -> None:
    drawn = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)

    def texts(seed: int) -> list[str]:
        outputs = open_llm(seed=seed).generate(["same", "same"], drawn)
        return [output.outputs[0].text for output in outputs]

    first, second = texts(0)
    assert first != second
    assert texts(0) == [first, second]
    assert texts(1) != [first, second]
