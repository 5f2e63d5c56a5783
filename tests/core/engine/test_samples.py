"""``n > 1``: samples of one prompt end in their own time and way."""

from __future__ import annotations

from typing import Any

import pytest

from baseboard.contract import RequestRejected
from core.engine.scripted import EOS, Scripted, scripted, tokens

PROMPT = tuple(tokens(*"prompt"))
LINES = [
    [*tokens("a"), EOS],
    [*tokens("b", "c", "d", "e"), EOS],
    [*tokens("f", "g", "h", "i", "j", "k", "l", "m"), EOS],
]


def begun(**params: Any) -> tuple[Scripted, str]:
    made = scripted({PROMPT: LINES})
    return made, made.add(PROMPT, n=3, **params)


def test_samples_of_different_lengths() -> None:
    made, request_id = begun()
    made.run()
    output = made.outputs[request_id]
    assert [sample.index for sample in output.outputs] == [0, 1, 2]
    assert [sample.token_ids for sample in output.outputs] == LINES
    assert [sample.text for sample in output.outputs] == ["a", "bcde", "fghijklm"]
    assert [made.streamed(request_id, index) for index in range(3)] == ["a", "bcde", "fghijklm"]
    assert {sample.finish_reason for sample in output.outputs} == {"stop"}
    stats = made.engine.scheduler.stats
    assert (stats.num_prompt_tokens, stats.num_generated_tokens) == (6, 16)


def test_each_has_its_own_reason() -> None:
    made, request_id = begun(max_tokens=4, stop="fgh")
    made.run()
    samples = made.outputs[request_id].outputs
    assert [(sample.text, sample.finish_reason) for sample in samples] == [
        ("a", "stop"),
        ("bcde", "length"),
        ("", "stop"),
    ]
    assert [sample.stop_reason for sample in samples] == [EOS, None, "fgh"]


def test_the_output_comes_when_the_last_sample_ends() -> None:
    made, request_id = begun()
    ended = []
    while made.engine.has_unfinished:
        made.step()
        ended.append(sum(delta.finish_reason is not None for delta in made.deltas))
    assert ended == [0, 1, 1, 1, 2, 2, 2, 2, 3]
    assert list(made.outputs) == [request_id]


def test_one_that_stops_at_once_leaves_the_others_alone() -> None:
    made = scripted({PROMPT: [tokens("a", "b"), [EOS], tokens("c", "d")]})
    request_id = made.add(PROMPT, n=3, max_tokens=2)
    made.run()
    samples = made.outputs[request_id].outputs
    assert [(sample.text, sample.finish_reason) for sample in samples] == [
        ("ab", "length"),
        ("", "stop"),
        ("cd", "length"),
    ]


@pytest.mark.parametrize(("steps", "texts"), [(0, [""]), (1, ["a", "b", "f"]), (3, ["a", "bcd", "fgh"])])
def test_an_abort_ends_all_samples(steps: int, texts: list[str]) -> None:
    """Before the prompt is computed there is one sample; afterwards the finished one keeps its reason."""
    made, request_id = begun()
    for _ in range(steps):
        made.step()
    made.abort(request_id)
    samples = made.outputs[request_id].outputs
    assert [sample.text for sample in samples] == texts
    assert [sample.finish_reason for sample in samples][-1] == "abort"
    assert samples[0].finish_reason == ("stop" if steps == 3 else "abort")
    made.check_idle()


def test_admission_is_all_or_none() -> None:
    made = scripted({PROMPT: LINES}, max_num_seqs=2)
    with pytest.raises(RequestRejected, match=r"n=3 .* max_num_seqs=2"):
        made.add(PROMPT, n=3)
    made.check_idle()

    made = scripted({PROMPT: LINES, PROMPT[:3]: [tokens(*"zzzzzzzzzz")]}, max_num_seqs=3)
    first = made.add(PROMPT[:3], max_tokens=4)
    second = made.add(PROMPT, n=3)
    for _ in range(4):
        made.step()
        assert {delta.request_id for delta in made.deltas} == {first}  # 2 places are free, and 3 are wanted
    made.run()
    assert [sample.text for sample in made.outputs[second].outputs] == ["a", "bcde", "fghijklm"]


def test_samples_take_turns_in_a_pool_too_small_for_all() -> None:
    """6 prompt tokens and 8 outputs take 4 blocks of 4; three samples side by side want more than 6."""
    lines = [tokens(*text) for text in ("abcdefgh", "ijklmnop", "qrstuvwx")]
    made = scripted({PROMPT: lines}, num_blocks=6)
    request_id = made.add(PROMPT, n=3, max_tokens=8)
    made.run()
    output = made.outputs[request_id]
    assert [sample.text for sample in output.outputs] == ["abcdefgh", "ijklmnop", "qrstuvwx"]
    assert output.num_preemptions > 0
    assert [made.streamed(request_id, index) for index in range(3)] == ["abcdefgh", "ijklmnop", "qrstuvwx"]
