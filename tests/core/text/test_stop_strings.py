"""Stop texts over several tokens: found, held back, released. Scenario 92."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baseboard.contract import SamplingParams
from baseboard.engine.detokenizer import Detokenizer
from baseboard.engine.stop_strings import StopMatcher
from core.text.tokenizers_for_tests import Counting


def stream(portions: Sequence[str], stop, **params) -> tuple[list[str], str | None]:
    """What is released after each portion and at the end, and the stop text found."""
    matcher = StopMatcher(SamplingParams(stop=stop, **params))
    released = [matcher.append(portion) for portion in portions]
    released.append(matcher.finish())
    assert released[-1].stop == matcher.stop
    return [part.text for part in released], matcher.stop


def plain(text: str, stops: Sequence[str], *, include: bool) -> tuple[str, str | None]:
    """The same, reading letter by letter: the first beginning of the text that ends with a stop."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@pytest.mark.parametrize(
    ("portions", "stop", "released", "found"),
    [
        (["AB", "CD", "EF"], "BCDE", ["A", "", "", ""], "BCDE"),
        (["AB", "CD", "EF"], "CDX", ["AB", "", "CDEF", ""], None),
        # "BC" is complete before "ABCD" is, so it ends the text; the order of the list plays no part
        (["AB", "CD", "EF"], ["BC", "ABCD"], ["", "A", "", ""], "BC"),
        (["AB", "CD", "EF"], ["ABCD", "BC"], ["", "A", "", ""], "BC"),
        (["AB", "CX"], "BCD", ["A", "BCX", ""], None),
        (["AB", "C"], "BCD", ["A", "", "BC"], None),  # held text is released at the end
        (["AB", "CD"], "CD", ["AB", "", ""], "CD"),  # equal to the last text
        (["ABXCDEF"], "X", ["AB", ""], "X"),  # more text after the stop in the same token
        (["AB", "CD", "EF"], "AB", ["", "", "", ""], "AB"),  # what was computed beyond the stop is never shown
        (["AB", "", "CD"], "BC", ["A", "", "", ""], "BC"),
        (["aa", "ab"], "aab", ["", "a", ""], "aab"),
        (["abab", "ac"], "abac", ["ab", "", ""], "abac"),  # "ababac" goes on as "abac" does
        (["ABC"], ["C", "BC", "ABC"], ["", ""], "ABC"),  # complete at the same letter: the longest
        (["ABCD"], ["AB", "ABC"], ["", ""], "AB"),
        (["a\n", "\n"], "\n\n", ["a", "", ""], "\n\n"),
        (["é", "😀x"], "😀", ["é", "", ""], "😀"),
        (["anything"], [], ["anything", ""], None),
        ([], "X", [""], None),
    ],
)
def test_table(portions, stop, released, found):
    assert stream(portions, stop) == (released, found)


def test_the_stop_is_included_once_on_request():
    released, found = stream(["AB", "CD", "EF"], "BCDE", include_stop_str_in_output=True)
    assert (released, found) == (["A", "", "BCDE", ""], "BCDE")
    assert "".join(stream(["ABCDBC"], "BC", include_stop_str_in_output=True)[0]) == "ABC"


def test_nothing_matches_over_the_edge_of_the_prompt():
    # The prompt "AB" is never appended, so an output "CD" holds no "BC", nor "ABCD".
    assert stream(["CD"], ["BC", "ABCD"]) == (["CD", ""], None)


def test_the_matcher_says_stop_with_the_text_and_ever_after():
    matcher = StopMatcher(SamplingParams(stop="CD"))
    assert (matcher.append("AB").stop, matcher.stop) == (None, None)
    assert matcher.append("XCDY").stop == "CD"
    assert (matcher.append("CD"), matcher.finish()) == (matcher.append(""), matcher.finish())
    assert matcher.append("CD").text == matcher.finish().text == ""


def test_text_of_the_first_tokens_is_not_searched():
    # min_tokens=2: "AB" and "CD" are passed over whole, so "BC" and "DE", which begins in them, do not stop.
    matcher = StopMatcher(SamplingParams(stop=["BC", "DE", "FG"], min_tokens=2))
    texts = [matcher.pass_over("AB"), matcher.pass_over("CD"), matcher.append("EF"), matcher.append("GH")]
    assert [part.text for part in texts] == ["AB", "CD", "E", ""]
    assert matcher.stop == "FG"


@settings(max_examples=300, deadline=None)
@given(
    portions=st.lists(st.text("ab", max_size=4), max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
    include=st.booleans(),
)
def test_any_portions_give_what_reading_letter_by_letter_gives(portions, stops, include):
    released, found = stream(portions, stops, include_stop_str_in_output=include)
    assert ("".join(released), found) == plain("".join(portions), stops, include=include)


@settings(max_examples=200, deadline=None)
@given(
    portions=st.lists(st.text("ab", max_size=4), max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_only_what_may_be_the_beginning_of_a_stop_is_held(portions, stops):
    matcher = StopMatcher(SamplingParams(stop=stops))
    seen = sent = ""
    for portion in portions:
        seen += portion
        sent += matcher.append(portion).text
        if matcher.stop is not None:
            return
        held = seen[len(sent) :]
        assert seen == sent + held
        beginnings = [stop[:n] for stop in stops for n in range(len(stop)) if seen.endswith(stop[:n])]
        assert held == max(beginnings, key=len)


def test_a_long_repetitive_stop_costs_a_bounded_number_of_steps_per_letter():
    steps = 0
    stop = "a" * 2000 + "b"

    class CountingText(str):
        __slots__ = ()

        def __getitem__(self, key):
            nonlocal steps
            steps += 1
            return super().__getitem__(key)

    matcher = StopMatcher(SamplingParams(stop=[CountingText(stop)]))
    steps = 0
    for _ in range(3000):
        matcher.append("a")
    assert steps <= 4 * 3000
    assert matcher.append("b").stop == stop


@settings(max_examples=60, deadline=None)
@given(text=st.text("aé😀你 ", max_size=30), stop=st.text("aé😀你 ", min_size=1, max_size=4), data=st.data())
def test_stops_over_tokens_that_divide_characters(bytes_tokenizer, text, stop, data):
    ids = bytes_tokenizer.encode(text).ids
    detokenizer = Detokenizer(Counting(bytes_tokenizer), skip_special_tokens=True)
    matcher = StopMatcher(SamplingParams(stop=stop))
    sent = ""
    while ids and matcher.stop is None:
        size = data.draw(st.integers(1, 5))
        sent += matcher.append(detokenizer.append(ids[:size])).text
        ids = ids[size:]
    sent += matcher.append(detokenizer.finish()).text + matcher.finish().text
    assert (sent, matcher.stop) == plain(text, [stop], include=False)
