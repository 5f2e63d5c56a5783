"""Where an output ends, and what of it is shown: stop texts, stop ids, ``min_tokens``, ``max_tokens``."""

from __future__ import annotations

from typing import Any

import pytest

from core.engine.scripted import EOS, Scripted, scripted, tokens

PROMPT = tuple(tokens("p", "X"))
AB, CD, EF, CX = tokens("AB", "CD", "EF", "CX")


def run(script: list[int], **params: Any) -> tuple[Scripted, str]:
    made = scripted({PROMPT: [script]})
    request_id = made.add(PROMPT, **params)
    made.run()
    return made, request_id


@pytest.mark.parametrize(
    ("script", "params", "text", "reason", "num_tokens"),
    [
        # a stop text over three tokens
        ([AB, CD, EF], {"stop": "BCDE", "max_tokens": 3}, "A", "stop", 3),
        # only its beginning comes
        ([AB, CD, EF], {"stop": "CDX", "max_tokens": 3}, "ABCDEF", "length", 3),
        # of two, the one completed first, whatever their order
        ([AB, CD, EF], {"stop": ["BC", "ABCD"], "max_tokens": 3}, "A", "stop", 2),
        ([AB, CD, EF], {"stop": ["ABCD", "BC"], "max_tokens": 3}, "A", "stop", 2),
        # of two completed by the same letter, the one that begins first
        ([AB, CD, EF], {"stop": ["D", "BCD"], "max_tokens": 3}, "A", "stop", 2),
        # what was held back is released in the end
        ([AB, CX], {"stop": "BCD", "max_tokens": 2}, "ABCX", "length", 2),
        ([AB, CD, EOS], {"stop": "CDE"}, "ABCD", "stop", 3),
        # completed by the very last token that may come
        ([AB, CD, EF], {"stop": "EF", "max_tokens": 3}, "ABCD", "stop", 3),
        ([AB, CD, EF], {"stop": "F", "max_tokens": 3}, "ABCDE", "stop", 3),
        # the prompt ends with X, but it is not part of the output
        ([AB, CD, EF], {"stop": "XA", "max_tokens": 3}, "ABCDEF", "length", 3),
        # included once, where asked for
        ([AB, CD, EF], {"stop": "BC", "include_stop_str_in_output": True, "max_tokens": 3}, "ABC", "stop", 2),
        # nothing of the token that completes it comes after it
        ([AB, CD, EF], {"stop": "C", "max_tokens": 3}, "AB", "stop", 2),
        # the first letter at once
        ([AB, CD, EF], {"stop": "A", "max_tokens": 3}, "", "stop", 1),
    ],
)
def test_stop_texts(script: list[int], params: dict[str, Any], text: str, reason: str, num_tokens: int) -> None:
    made, request_id = run(script, **params)
    sample = made.outputs[request_id].outputs[0]
    assert (sample.text, sample.finish_reason, len(sample.token_ids)) == (text, reason, num_tokens)
    assert made.streamed(request_id) == text
    assert made.engine.scheduler.stats.num_generated_tokens == num_tokens  # nothing was computed beyond the stop


def test_a_stop_text_is_the_reason_given() -> None:
    made, request_id = run([AB, CD, EF], stop=["BC", "EF"], max_tokens=3)
    assert made.outputs[request_id].outputs[0].stop_reason == "BC"


@pytest.mark.parametrize(
    ("params", "text", "num_tokens", "stop_reason"),
    [
        ({"max_tokens": 7}, "abc", 4, EOS),
        ({"max_tokens": 7, "stop_token_ids": tokens("b")}, "a", 2, tokens("b")[0]),
        ({"max_tokens": 7, "ignore_eos": True, "skip_special_tokens": False}, "abc<eos>def", 7, None),
        ({"max_tokens": 7, "ignore_eos": True}, "abcdef", 7, None),
        ({"max_tokens": 4}, "abc", 4, EOS),
        ({"max_tokens": 3}, "abc", 3, None),
        ({"max_tokens": 1}, "a", 1, None),
    ],
)
def test_stop_ids_and_lengths(params: dict[str, Any], text: str, num_tokens: int, stop_reason: int | None) -> None:
    """The token that ends an output is counted and listed, and is no part of the text."""
    script = [*tokens("a", "b", "c"), EOS, *tokens("d", "e", "f")]
    prompt = tuple(tokens(*"abcdefghijklmnopqrstuvw"))
    made = scripted({prompt: [script]})
    request_id = made.add(prompt, **params)
    made.run()
    output = made.outputs[request_id]
    sample = output.outputs[0]
    assert (len(output.prompt_token_ids), sample.token_ids) == (23, script[:num_tokens])
    assert (sample.text, sample.stop_reason) == (text, stop_reason)
    assert sample.finish_reason == ("length" if stop_reason is None else "stop")
    assert made.streamed(request_id) == text
    stats = made.engine.scheduler.stats
    assert (stats.num_prompt_tokens, stats.num_generated_tokens) == (23, num_tokens)


@pytest.mark.parametrize(
    ("stop", "min_tokens", "text"),
    [
        ("b", 0, "a"),
        ("b", 1, "a"),
        ("b", 2, "abca"),
        ("b", 4, "abca"),
        ("b", 5, "abcabca"),
        ("bc", 2, "abca"),  # begun by the second token, completed by the third
        ("bc", 4, "abca"),
        ("bc", 5, "abcabcab"),
    ],
)
def test_stop_texts_count_only_after_min_tokens(stop: str, min_tokens: int, text: str) -> None:
    """A stop text that lies in the first ``min_tokens`` tokens, or begins there, is passed over."""
    made, request_id = run(tokens(*"abcabcab"), stop=stop, min_tokens=min_tokens, max_tokens=8)
    assert made.outputs[request_id].outputs[0].text == text
    assert made.streamed(request_id) == text


def test_stop_ids_count_only_after_min_tokens() -> None:
    made, request_id = run([EOS, *tokens("a"), EOS, *tokens("b")], min_tokens=2, max_tokens=4)
    sample = made.outputs[request_id].outputs[0]
    assert (sample.token_ids, sample.text, sample.finish_reason) == ([EOS, *tokens("a"), EOS], "a", "stop")


@pytest.mark.parametrize("first", [{"stop_token_ids": tokens("a")}, {}], ids=["own stop id", "end of text"])
def test_a_stop_id_as_the_very_first_token(first: dict[str, Any]) -> None:
    stop = tokens("a")[0] if first else EOS
    prompt = tuple(tokens(*"thequickbrown"))
    follow_up = (*prompt, *tokens(*"foxes"))
    made = scripted({prompt: [[stop]], follow_up: [[AB, CD]]})
    request_id = made.add(prompt, **first)
    made.run()
    sample = made.outputs[request_id].outputs[0]
    assert (sample.text, sample.token_ids, sample.finish_reason) == ("", [stop], "stop")
    assert made.streamed(request_id) == ""

    later = made.add(follow_up, max_tokens=2)  # the same conversation goes on
    made.run()
    assert made.outputs[later].outputs[0].text == "ABCD"
    assert made.outputs[later].num_cached_tokens == 12  # the full blocks of 4 among 13 tokens


def test_an_abort_shows_what_was_held_back() -> None:
    made = scripted({PROMPT: [[AB, CD, EF, AB]]})
    request_id = made.add(PROMPT, stop="ABCDEFG")
    made.step()
    made.step()
    assert made.deltas[-1].text == ""
    made.abort(request_id)
    sample = made.outputs[request_id].outputs[0]
    assert (sample.text, sample.token_ids, sample.finish_reason) == ("ABCD", [AB, CD], "abort")
    assert made.streamed(request_id) == "ABCD"
    made.check_idle()
    made.abort(request_id)  # once more changes nothing
