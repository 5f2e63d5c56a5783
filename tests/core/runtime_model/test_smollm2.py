"""The packaged model, as users meet it first: real weights from a GGUF file, its tokenizer and its chat template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from baseboard.contract import RequestRejected
from baseboard.runtime.loader import load_model
from baseboard.runtime.model_loaded import LoadedModel
from baseboard.runtime.sources import resolve_model
from baseboard.runtime.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    return load_model(resolve_model("smollm2"), "float32", "cpu")


@pytest.fixture
def tokenizer(smollm2: LoadedModel) -> Tokenizer:
    assert smollm2.tokenizer is not None
    return smollm2.tokenizer


def test_it_knows_the_capital_of_france(smollm2: LoadedModel, tokenizer: Tokenizer, drive: Callable[..., Any]) -> None:
    driver = drive(smollm2)
    prompt = tokenizer.encode("The capital of France is")
    assert prompt == [504, 3575, 282, 4649, 314]
    driver.add("it", prompt)
    driver.step({"it": 2})
    logits = driver.step({"it": 3})["it"]
    assert tokenizer.decode([int(logits[-1].argmax())]) == " Paris"


def test_its_facts(smollm2: LoadedModel) -> None:
    assert smollm2.name == "smollm2"
    assert smollm2.num_parameters == 134_515_008
    assert (smollm2.vocab_size, smollm2.max_positions, smollm2.eos_token_ids) == (49152, 8192, {2})
    assert smollm2.dtype == "float32"
    (group,) = smollm2.groups(16)
    assert (group.spec.num_layers, group.spec.num_kv_heads, group.spec.head_size) == (30, 3, 64)
    assert {(f.attention.num_heads, f.attention.scale, f.attention.sliding_window) for f in smollm2.layers} == {
        (9, 0.125, None)
    }


@pytest.mark.parametrize("text", ["  two spaces\n\n", "don't , really .", "日本語 émigré 🎉", "x=3.14;\ty", "1234567"])
def test_text_comes_back_unchanged(text: str, tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>hi<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert tokenizer.decode(ids) == "hi"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>hi<|im_end|>"
    assert tokenizer.eos_token_ids == {2}
    assert tokenizer.vocab_size == 49152


def test_a_prompt_of_any_length_is_encoded_without_a_warning(
    tokenizer: Tokenizer, capfd: pytest.CaptureFixture[str]
) -> None:
    assert len(tokenizer.encode("a b " * 9000)) > 8192
    assert capfd.readouterr() == ("", "")


def test_the_chat_template(tokenizer: Tokenizer) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.render_chat(messages) == expected
    ids = tokenizer.encode_chat(messages)
    assert tokenizer.decode(ids, skip_special_tokens=False) == expected
    assert ids.count(1) == 3


@pytest.mark.parametrize("messages", [[{"role": "user"}], ["hello"], [{}]])
def test_messages_that_the_template_refuses(messages: Any, tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestRejected, match="the model's chat template refuses these messages"):
        tokenizer.render_chat(messages)


def test_a_model_without_a_chat_template() -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=Backend(WordLevel({"a": 0}, unk_token="a"))))
    assert plain.eos_token_ids == frozenset()
    with pytest.raises(RequestRejected, match="no chat template; give the prompt to generate"):
        plain.render_chat([{"role": "user", "content": "a"}])


def test_half_precision_loads_too(drive: Callable[..., Any]) -> None:
    loaded = load_model(resolve_model("smollm2"), "bfloat16", "cpu")
    assert loaded.weights_nbytes < 2.1 * loaded.num_parameters
    assert loaded.layers[0].attention.scale == 0.125
    assert torch.bfloat16 is loaded._model.dtype
