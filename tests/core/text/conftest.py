"""The tokenizers, made once."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from core.text.tokenizers_for_tests import byte_fallback, byte_level, metaspace, word_piece

MADE = {
    "bytes": byte_level(256),
    "merged_bytes": byte_level(420),
    "byte_fallback": byte_fallback(),
    "word_piece": word_piece(),
    "metaspace": metaspace(),
}


@pytest.fixture(scope="session", params=["bytes", "merged_bytes"])
def byte_level_tokenizer(request) -> Tokenizer:
    return MADE[request.param]


@pytest.fixture(scope="session", params=["byte_fallback", "word_piece", "metaspace"])
def spaced_tokenizer(request) -> Tokenizer:
    return MADE[request.param]


@pytest.fixture(scope="session")
def bytes_tokenizer() -> Tokenizer:
    return MADE["bytes"]


@pytest.fixture(scope="session")
def fallback_tokenizer() -> Tokenizer:
    return MADE["byte_fallback"]
