"""Inputs in a prompt: what is refused, and that no two content ids pass for each other."""

from __future__ import annotations

from typing import Any

import pytest

from baseboard.contract import ContentId, MediaSpan, RequestRejected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 4, "x", 4), "offset=-1 must be at least 0"),
        ((0, 0, "x", 4), "length=0 must be at least 1"),
        ((0, 4, "x", 0), "cost=0 must be at least 1"),
        ((0, 4, "", 4), "the content id is empty"),
        ((0, 4, b"", 4), "the content id is empty"),
        ((0, 4, -1, 4), r"a content id that is a number must be 0 to 2\*\*128 - 1; use bytes"),
        ((0, 4, 2**128, 4), r"a content id that is a number must be 0 to 2\*\*128 - 1; use bytes"),
    ],
)
def test_spans_that_no_prompt_can_have_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(RequestRejected, match=message):
        MediaSpan(*arguments)


def test_a_span_ends_behind_its_last_position() -> None:
    assert MediaSpan(40, 32, "x", 1).end == 72


def test_the_key_has_all_of_the_content_id() -> None:
    """Scenario 46: numbers that share their low 16 or 64 bits, and the same digits as number, text and bytes."""
    ids: list[ContentId] = [7, 7 + 2**16, 7 + 2**64, 7 + 2**127, "7", b"7", "\ud800", (7).to_bytes(16, "big")]
    keys = [MediaSpan(0, 1, each, 1).content_key for each in ids]
    assert len(set(keys)) == len(ids)
    assert keys[3] == b"i" + bytes([128] + [0] * 14 + [7])
