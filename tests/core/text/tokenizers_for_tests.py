"""Small tokenizers of the three kinds there are, and the way a Hugging Face tokenizer is called."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = [
    "The quick brown fox jumps over the lazy dog. It wasn't there, was it?",
    "Größe, façade, naïve — 你好世界 안녕하세요 привет мир",
    "def f(x):\n    return x  # twice\n\n",
    "😀 😁 👍 👩‍👩‍👧 🇩🇪",
]
SPECIAL = "<|end|>"


class Counting:
    """A decoder that records how many ids it was given in each call."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.calls: list[int] = []

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        self.calls.append(len(token_ids))
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)


def byte_level(vocabulary: int) -> Tokenizer:
    """Byte-level BPE; with a vocabulary of 256 each byte is a token, with more, tokens also end inside characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_special_tokens([AddedToken(SPECIAL, special=True)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As sentencepiece makes them: pieces with "▁" for a space, single bytes for what is in no piece."""
    pieces = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁hello",
        "▁world",
        "hello",
        "wor",
        "ld",
        "é",
        ".",
    ]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(SPECIAL, special=True)])
    return tokenizer


def word_piece() -> Tokenizer:
    """Words are joined by spaces that belong to no token."""
    pieces = ["[UNK]", "hello", "world", "##ing", "##s", ".", ",", "'", "é", "你", "do", "n't"]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens([AddedToken(SPECIAL, special=True)])
    return tokenizer


def metaspace() -> Tokenizer:
    """Spaces in tokens, the first one of a text dropped by the decoder."""
    pieces = ["<unk>", "▁", "▁▁", "▁hello", "▁world", "ing", ".", "é"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken(SPECIAL, special=True)])
    return tokenizer
