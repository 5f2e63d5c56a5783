"""A tiny model that speaks letters, behind the real ``LLM``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch

from baseboard.llm import LLM
from baseboard.runtime.loader import wrap_model
from families import build


class Letters:
    """The tokenizer: a token's text is the character of its number; the chat template marks who speaks."""

    vocab_size = 128
    eos_token_ids = frozenset[int]()

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, token_ids))

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return "".join(f"{message['role'][0]}:{message['content']};" for message in messages) + "a:"

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return self.encode(self.render_chat(messages))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def open_llm() -> Iterator[Callable[..., LLM]]:
    """Closed after the test; then nothing is held any more."""
    opened: list[LLM] = []

    def make(**settings: Any) -> LLM:
        small = {"block_size": 4, "num_kv_blocks": 32, "max_num_seqs": 4, "max_num_batched_tokens": 32}
        model = wrap_model(build("llama"), Letters())  # pyright: ignore[reportArgumentType]  all that it is asked for
        opened.append(LLM(model, backend="reference", dtype="float32", **(small | settings)))
        return opened[-1]

    yield make
    for llm in opened:
        stats = llm.stats()
        llm.built.engine.scheduler.check()
        assert stats["num_running"] == stats["num_waiting"] == stats["num_swapped"] == 0
        assert stats["num_free_kv_blocks"] == stats["num_kv_blocks"]
        llm.close()
