"""What cannot work is refused with a typed error that names value, limit and way out; and the next request works."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from against_transformers import tokens_of
from baseboard import SamplingParams
from baseboard.contract import (
    BackendFault,
    BackendUnavailable,
    MemoryShortage,
    ModelLoadError,
    RequestRejected,
    Unsupported,
)
from baseboard.llm import LLM
from baseboard.runtime.loader import wrap_model
from families import VOCAB_SIZE, build

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
GOOD = {"prompt_token_ids": [5, 6, 7]}
SMALL: dict[str, Any] = {
    "backend": "reference",
    "dtype": "float32",
    "block_size": 4,
    "num_kv_blocks": 16,
    "max_model_len": 48,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 16,
}
OpenTiny = Callable[..., LLM]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def open_tiny() -> Iterator[OpenTiny]:
    """Engines over a tiny Llama; after the test nothing of a request is left in them."""
    opened: list[LLM] = []

    def make(**settings: Any) -> LLM:
        opened.append(LLM(wrap_model(build("llama")), **(SMALL | settings)))
        return opened[-1]

    yield make
    for llm in opened:
        check_idle(llm)
        llm.close()


def check_idle(llm: LLM) -> None:
    stats = llm.stats()
    assert stats["num_running"] == stats["num_waiting"] == stats["num_swapped"] == 0
    assert stats["num_free_kv_blocks"] == stats["num_kv_blocks"]
    llm.built.engine.scheduler.check()


@pytest.fixture(scope="module")
def expected() -> list[int]:
    """What the good prompt gives where nothing bad came before it."""
    with LLM(wrap_model(build("llama")), **SMALL) as llm:
        return llm.generate(GOOD, GREEDY)[0].outputs[0].token_ids


def ids(count: int) -> dict[str, Any]:
    return {"prompt_token_ids": [3 + at % 50 for at in range(count)]}


BAD_CONVERSATIONS: list[Any] = [
    [],
    "hello",
    ["hello"],
    7,
    [{"role": "user"}],
    [{"content": "x"}],
    [{"role": 5, "content": 5}],
]


# --- prompts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ({"prompt_token_ids": []}, "the prompt is empty: give at least one token"),
        (ids(48), "has 48 tokens, but max_model_len=48 leaves room for 47 and one output; shorten it or raise"),
        (ids(49), "has 49 tokens, but max_model_len=48"),
        (ids(5000), "has 5000 tokens, but max_model_len=48"),
        ({"prompt_token_ids": [5, VOCAB_SIZE]}, "prompt_token_ids holds 128, but the model's token ids are 0 to 127"),
        ({"prompt_token_ids": [5, -1]}, "prompt_token_ids holds -1, but the model's token ids are 0 to 127"),
        ({"prompt_token_ids": [5, 2**70]}, f"prompt_token_ids holds {2**70}, but"),
        ({"prompt_token_ids": [5, 1.5]}, "prompt_token_ids holds 1.5: token ids are whole numbers"),
        ({"prompt_token_ids": [5, "6"]}, "prompt_token_ids holds '6': token ids are whole numbers"),
        ({"prompt_token_ids": [5, None]}, "prompt_token_ids holds None: token ids are whole numbers"),
        ({"prompt_token_ids": [True]}, "prompt_token_ids holds True: token ids are whole numbers"),
        ({"prompt_token_ids": [[5, 6]]}, "prompt_token_ids holds [5, 6]: token ids are whole numbers"),
        ({"prompt_token_ids": np.array([0.5])}, "prompt_token_ids holds 0.5: token ids are whole numbers"),
        ({"prompt_token_ids": np.array(5)}, "prompt_token_ids=array(5) is not allowed: give a list"),
        ({"prompt_token_ids": "5 6"}, "prompt_token_ids='5 6' is not allowed: give a list"),
        ({"prompt_token_ids": 5}, "prompt_token_ids=5 is not allowed: give a list"),
        ({"prompt_token_ids": None}, "prompt_token_ids=None is not allowed: give a list"),
        ({"prompt": 5}, "{'prompt': 5} is no prompt: give a text"),
        ({}, "{} is no prompt: give a text"),
        ("a text", "llama has no tokenizer: give prompt_token_ids"),
    ],
)
def test_bad_prompts(open_tiny: OpenTiny, expected: list[int], prompt: Any, said: str) -> None:
    llm = open_tiny()
    with pytest.raises(RequestRejected, match=re.escape(said)):
        llm.generate(prompt, GREEDY)
    assert llm.generate(GOOD, GREEDY)[0].outputs[0].token_ids == expected

    # In a batch it is named, and nothing of the batch is begun.
    with pytest.raises(RequestRejected, match="prompt 1: .*" + re.escape(said)):
        llm.generate([GOOD, prompt, GOOD], GREEDY)
    assert llm.stats()["num_requests"] == 1
    assert tokens_of(llm.generate([GOOD, GOOD], GREEDY)) == [expected] * 2


@pytest.mark.parametrize("prompts", [5, None, 1.5, b"bytes", object()])
def test_what_is_no_list_of_prompts(open_tiny: OpenTiny, prompts: Any) -> None:
    with pytest.raises(RequestRejected, match=r"prompts=.* is not allowed: give a list"):
        open_tiny().generate(prompts, GREEDY)


def test_token_ids_are_not_prompts(open_tiny: OpenTiny) -> None:
    with pytest.raises(RequestRejected, match="prompt 0: 5 is no prompt: give a text"):
        open_tiny().generate([5, 6], GREEDY)  # pyright: ignore[reportArgumentType]


def test_the_longest_prompt_gives_one_token(open_tiny: OpenTiny) -> None:
    (output,) = open_tiny().generate(ids(47), GREEDY)
    assert len(output.outputs[0].token_ids) == 1
    assert output.outputs[0].finish_reason == "length"


def test_a_prompt_longer_than_the_whole_pool(open_tiny: OpenTiny, expected: list[int]) -> None:
    llm = open_tiny(num_kv_blocks=8)
    with pytest.raises(RequestRejected, match=r"has 33 tokens, but the whole KV pool holds 32; .* raise num_kv_blocks"):
        llm.generate(ids(33), GREEDY)
    assert len(llm.generate(ids(32), GREEDY)[0].outputs[0].token_ids) == 1
    assert llm.generate(GOOD, GREEDY)[0].outputs[0].token_ids == expected


def test_a_prompt_longer_than_a_step_without_chunks(open_tiny: OpenTiny) -> None:
    llm = open_tiny(enable_chunked_prefill=False)
    with pytest.raises(RequestRejected, match=r"has 17 tokens, but .* max_num_batched_tokens=16; raise it or enable"):
        llm.generate(ids(17), GREEDY)
    assert len(llm.generate(ids(16), GREEDY)[0].outputs[0].token_ids) == 4


def test_texts_that_are_no_prompts(smollm2: Any) -> None:
    with LLM(smollm2, **(SMALL | {"block_size": 16})) as llm:
        for text, said in [("", "the prompt is empty"), ("\ud800", "cannot be encoded")]:
            with pytest.raises(RequestRejected, match=said):
                llm.generate(text, GREEDY)
            with pytest.raises(RequestRejected, match=f"prompt 1: .*{said}"):
                llm.generate(["ok", text], GREEDY)
        surrogate = [{"role": "user", "content": "\ud800"}]
        for messages in BAD_CONVERSATIONS:
            with pytest.raises(RequestRejected):
                llm.chat(messages, GREEDY)
            with pytest.raises(RequestRejected):
                next(llm.stream_chat(messages, GREEDY))
        with pytest.raises(RequestRejected, match="cannot be encoded"):
            llm.chat(surrogate, GREEDY)
        with pytest.raises(RequestRejected, match="prompt 1: the conversation is empty"):
            llm.chat([[{"role": "user", "content": "x"}], []], GREEDY)
        assert len(llm.generate("ok", GREEDY)[0].outputs[0].token_ids) == 4
        check_idle(llm)


# --- sampling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_tokens": 0}, "max_tokens=0 is not allowed: it must be at least 1"),
        ({"max_tokens": -1}, "max_tokens=-1 is not allowed: it must be at least 1"),
        ({"max_tokens": 1.5}, "max_tokens=1.5 is not allowed: give a whole number"),
        ({"temperature": -0.1}, "temperature=-0.1 is not allowed: it must be at least 0"),
        ({"temperature": math.nan}, "temperature=nan is not allowed"),
        ({"temperature": math.inf}, "temperature=inf is not allowed"),
        ({"top_p": 0.0}, "top_p=0.0 is not allowed: it must be above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p=1.1 is not allowed"),
        ({"top_k": -1}, "top_k=-1 is not allowed"),
        ({"n": 0}, "n=0 is not allowed"),
        ({"logprobs": 21}, "logprobs=21 is not allowed: it must be at most 20"),
        ({"stop": [""]}, "stop='' is not allowed"),
        ({"min_tokens": 9, "max_tokens": 4}, "min_tokens=9 is more than max_tokens=4"),
        ({"allowed_token_ids": []}, "it allows no token at all"),
        ({"logit_bias": {3: math.nan}}, "logit_bias=nan is not allowed"),
        ({"stop_token_ids": [-1]}, "stop_token_ids=-1 is not allowed"),
        ({"structured_output": "json"}, "structured_output='json' is not allowed"),
    ],
)
def test_parameters_that_no_model_could_follow(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestRejected, match=re.escape(said)):
        SamplingParams(**settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"stop_token_ids": [128]}, "stop_token_ids holds 128, but the model's token ids are 0 to 127"),
        ({"allowed_token_ids": [5, 128]}, "allowed_token_ids holds 128, but the model's token ids are 0 to 127"),
        ({"logit_bias": {128: 5.0}}, "logit_bias holds 128, but the model's token ids are 0 to 127"),
        ({"n": 5}, "n=5 samples need as many places, but max_num_seqs=4; raise it"),
    ],
)
def test_parameters_that_this_engine_cannot_follow(
    open_tiny: OpenTiny, expected: list[int], settings: dict[str, Any], said: str
) -> None:
    llm = open_tiny()
    bad = GREEDY.replace(**settings)
    with pytest.raises(RequestRejected, match=re.escape(said)):
        llm.generate(GOOD, bad)
    with pytest.raises(RequestRejected, match="prompt 2: " + re.escape(said)):
        llm.generate([GOOD, GOOD, GOOD], [GREEDY, GREEDY, bad])
    assert llm.stats()["num_requests"] == 0
    assert llm.generate(GOOD, GREEDY)[0].outputs[0].token_ids == expected


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ([], "0 sampling_params for 2 prompts: give one, or one for each"),
        ([GREEDY], "1 sampling_params for 2 prompts"),
        ([GREEDY] * 3, "3 sampling_params for 2 prompts"),
        ([GREEDY, None], "sampling_params holds None: give SamplingParams"),
        ({"temperature": 0}, "sampling_params={'temperature': 0} is not allowed: give a list"),
        (0.5, "sampling_params=0.5 is not allowed: give a list"),
    ],
)
def test_sampling_params_that_do_not_fit_the_prompts(open_tiny: OpenTiny, params: Any, said: str) -> None:
    llm = open_tiny()
    with pytest.raises(RequestRejected, match=re.escape(said)):
        llm.generate([GOOD, GOOD], params)
    assert llm.stats()["num_requests"] == 0


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dtype": "int3"}, "dtype='int3' is unknown; known are bfloat16, float16, float32"),
        ({"policy": "lottery"}, "policy='lottery' is unknown; known are aging, fcfs, prefill_first, priority"),
        ({"preemption": "never"}, "preemption='never' is unknown; known are auto, recompute, swap"),
        ({"preemption": "swap"}, "preemption='swap' needs num_host_blocks of at least 1; set it, or use 'recompute'"),
        (
            {"preemption": "recompute", "num_host_blocks": 4},
            "num_host_blocks=4, but preemption='recompute' never swaps; use 'auto' or 'swap', or 0",
        ),
        ({"policy": ["fcfs"]}, "policy=['fcfs'] must be a name"),
        ({"num_kv_blocks": 0}, "num_kv_blocks=0 must be at least 1"),
        ({"num_kv_blocks": 1.5}, "num_kv_blocks=1.5 must be a whole number"),
        ({"num_host_blocks": -1}, "num_host_blocks=-1 must be at least 0"),
        ({"max_num_seqs": 0}, "max_num_seqs=0 must be at least 1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens=0 must be at least 1"),
        ({"max_model_len": 1}, "max_model_len=1 must be at least 2"),
        ({"max_model_len": 257}, "max_model_len=257 is more than the 256 positions of llama"),
        ({"memory_fraction": 0.0}, "memory_fraction=0.0 must be above 0 and at most 1"),
        ({"memory_fraction": 1.1}, "memory_fraction=1.1 must be above 0 and at most 1"),
        ({"memory_fraction": math.nan}, "memory_fraction=nan must be above 0 and at most 1"),
        ({"block_size": 3}, "block size 3 is not supported"),
        ({"seed": "x"}, "seed='x' must be a whole number"),
    ],
)
def test_settings_that_cannot_work(open_tiny: OpenTiny, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(Unsupported, match=re.escape(said)):
        open_tiny(**settings)


def test_all_problems_of_the_settings_are_named_at_once(open_tiny: OpenTiny) -> None:
    with pytest.raises(Unsupported) as refused:
        open_tiny(dtype="int3", num_kv_blocks=0, policy="lottery")
    assert len(refused.value.reasons) == 3


def test_a_dtype_that_the_loaded_model_does_not_have(open_tiny: OpenTiny) -> None:
    with pytest.raises(Unsupported, match=r"dtype='bfloat16', but llama was loaded in 'float32'"):
        open_tiny(dtype="bfloat16")


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("abacus", "backend 'abacus' is not installed; .*installed are: .*reference"),
        ("reference:77", "backend 'reference' has no device 77; it has: 0"),
        ("referense", "did you mean reference"),
    ],
)
def test_unknown_backends(open_tiny: OpenTiny, backend: str, said: str) -> None:
    with pytest.raises(BackendUnavailable, match=said):
        open_tiny(backend=backend)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_pool_of_one_block(open_tiny: OpenTiny) -> None:
    llm = open_tiny(num_kv_blocks=1)
    (output,) = llm.generate({"prompt_token_ids": [5, 6, 7]}, GREEDY)
    # A block of 4 holds three tokens and the first output; the last output's keys are never needed.
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (2, "length")
    with pytest.raises(RequestRejected, match="has 5 tokens, but the whole KV pool holds 4"):
        llm.generate(ids(5), GREEDY)
    outputs = llm.generate([ids(4), ids(1), ids(2)], GREEDY)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 4, 3]


def test_memory_that_does_not_hold_one_sequence(open_tiny: OpenTiny) -> None:
    with pytest.raises(MemoryShortage) as short:
        open_tiny(num_kv_blocks=None, memory_fraction=1e-6)
    said = str(short.value)
    # 48 tokens are 47 to be stored: 12 blocks and the null block, 3 layers x 2 heads x 16 x 2 x 4 bytes x 4 tokens.
    assert "one sequence of max_model_len=48 tokens needs 39,936 bytes of KV cache" in said
    assert "39,936 bytes are missing" in said
    assert "memory_fraction=1e-06" in said
    assert "max_num_batched_tokens" in said
    assert "raise memory_fraction" in said


def test_a_pool_that_no_machine_has(open_tiny: OpenTiny) -> None:
    with pytest.raises(MemoryShortage, match=r"a KV pool of 1000000000000 blocks takes .* lower num_kv_blocks"):
        open_tiny(num_kv_blocks=10**12)
    with pytest.raises(MemoryShortage, match=r"a host pool of 1000000000000 blocks takes .* lower num_host_blocks"):
        open_tiny(num_host_blocks=10**12)


# --- model files ------------------------------------------------------------------------------------------------------


def saved(folder: Path) -> Path:
    build("llama").save_pretrained(folder)
    return folder


def no_weights(folder: Path) -> Path:
    for file in saved(folder).glob("*.safetensors"):
        file.unlink()
    return folder


def cut_short(folder: Path) -> Path:
    weights = saved(folder) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    return folder


def no_gguf(folder: Path) -> Path:
    (folder / "model.gguf").write_text("not what it says")
    return folder / "model.gguf"


def empty_folder(folder: Path) -> Path:
    return folder


def nowhere(folder: Path) -> Path:
    return folder / "nowhere"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (no_weights, "has a config.json but no weights"),
        (cut_short, r"model.safetensors is cut short: it has \d+ bytes, its tensors need \d+; fetch it again"),
        (no_gguf, "model.gguf.* GGUF"),
        (empty_folder, "has no config.json"),
        (nowhere, "no model at .*nowhere.*: there is no such folder or file; give a folder"),
    ],
)
def test_model_files_that_cannot_be_read(tmp_path: Path, spoil: Callable[[Path], Path], said: str) -> None:
    with pytest.raises(ModelLoadError, match=said):
        LLM(spoil(tmp_path), **SMALL)


# --- what fails while it runs -----------------------------------------------------------------------------------------


class Sabotage:
    """Stands before a model's forward pass and spoils the calls that it is told to."""

    def __init__(self, llm: LLM, spoil: Callable[[int, torch.Tensor], torch.Tensor]) -> None:
        self._forward = llm.built.model.forward
        self._spoil = spoil
        self.calls = 0
        llm.built.model.forward = self  # pyright: ignore[reportAttributeAccessIssue]  it is called the same way

    def __call__(self, token_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self._spoil(self.calls, self._forward(token_ids, positions, rows))


def test_a_forward_pass_that_raises(open_tiny: OpenTiny, expected: list[int]) -> None:
    """Two places: the first two prompts are in the step that fails, the third is not."""
    llm = open_tiny(max_num_seqs=2)

    def spoil(call: int, logits: torch.Tensor) -> torch.Tensor:
        if call == 2:
            raise RuntimeError("the kernel has no luck")
        return logits

    Sabotage(llm, spoil)
    outputs = llm.generate([GOOD, GOOD, GOOD], GREEDY)
    samples = [output.outputs[0] for output in outputs]
    assert [sample.finish_reason for sample in samples] == ["error", "error", "length"]
    assert {sample.error for sample in samples[:2]} == {"RuntimeError: the kernel has no luck"}
    assert [sample.token_ids for sample in samples] == [expected[:1], expected[:1], expected]
    assert llm.generate(GOOD, GREEDY)[0].outputs[0].token_ids == expected


def test_memory_that_runs_out_once(open_tiny: OpenTiny, expected: list[int]) -> None:
    llm = open_tiny()

    def spoil(call: int, logits: torch.Tensor) -> torch.Tensor:
        if call == 1:
            raise torch.OutOfMemoryError("no 3 GiB left")
        return logits

    Sabotage(llm, spoil)
    (output,) = llm.generate(GOOD, GREEDY)
    assert output.outputs[0].error == "OutOfMemoryError: no 3 GiB left"
    assert llm.generate(GOOD, GREEDY)[0].outputs[0].token_ids == expected


@pytest.mark.parametrize(
    ("value", "error"), [(math.nan, "the model's logits contain NaN"), (math.inf, "the logits contain infinity")]
)
def test_broken_logits_of_one_row(open_tiny: OpenTiny, expected: list[int], value: float, error: str) -> None:
    llm = open_tiny()
    good = llm.generate(ids(2), GREEDY)[0].outputs[0].token_ids

    def spoil(call: int, logits: torch.Tensor) -> torch.Tensor:
        logits = logits.clone()
        if call == 3:
            logits[1, 17] = value
        return logits

    Sabotage(llm, spoil)
    outputs = llm.generate([ids(2), GOOD, ids(2)], GREEDY)
    samples = [output.outputs[0] for output in outputs]
    assert [sample.token_ids for sample in samples] == [good, expected[:2], good]
    assert [sample.error for sample in samples] == [None, error, None]
    assert samples[1].finish_reason == "error"
    assert llm.generate(GOOD, GREEDY)[0].outputs[0].token_ids == expected


def test_a_lost_device(open_tiny: OpenTiny) -> None:
    llm = open_tiny(max_num_seqs=1)

    def spoil(call: int, logits: torch.Tensor) -> torch.Tensor:
        raise BackendFault("it fell off the bus")

    Sabotage(llm, spoil)
    outputs = llm.generate([GOOD, GOOD, GOOD], GREEDY)
    assert [output.outputs[0].finish_reason for output in outputs] == ["error"] * 3
    assert {output.outputs[0].error for output in outputs} == {"it fell off the bus"}
    with pytest.raises(BackendFault, match=r"the device is lost .it fell off the bus.: build a new engine"):
        llm.generate(GOOD, GREEDY)


def test_an_interrupt_in_the_middle_of_a_forward_pass(open_tiny: OpenTiny, expected: list[int]) -> None:
    """Pressed twice, Ctrl-C does not wait for the step; even then the engine is left whole."""
    llm = open_tiny(num_kv_blocks=8)

    def spoil(call: int, logits: torch.Tensor) -> torch.Tensor:
        if call == 3:
            raise KeyboardInterrupt
        return logits

    Sabotage(llm, spoil)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([GOOD, ids(12), GOOD, ids(20)], GREEDY)
    check_idle(llm)
    assert tokens_of(llm.generate([GOOD, GOOD], GREEDY)) == [expected] * 2
