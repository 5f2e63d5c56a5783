"""Texts that end an output, found while it is streamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baseboard.contract import SamplingParams


@dataclass(frozen=True, slots=True)
class ReleasedText:
    """Text that may be sent now, and the stop text that ended the output with it, if one did."""

    text: str
    stop: str | None = None


class StopMatcher:
    """Looks for a request's stop texts in its output and holds back what may be the beginning of one.

    The stop text that is *completed* first ends the output: the one that a reader, letter by letter, would see
    first. Of several completed by the same letter, the longest does, which starts earliest. So the outcome depends
    neither on how the text was cut into deltas, nor on the order of the stop texts, nor on anything after the stop::

        text   A B C D      stops "BC", "ABCD"      "BC" is complete at C: the output is "A"

    Only text handed to ``append`` is searched. The text of the first ``min_tokens`` tokens goes through
    ``pass_over`` instead, so a stop text never begins within it; neither does one begin in the prompt.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._candidates = [_Candidate(text) for text in params.stop]
        self._include_stop = params.include_stop_str_in_output
        self._held = ""
        self._stop: str | None = None

    @property
    def stop(self) -> str | None:
        """The stop text that ended the output; None while it goes on."""
        return self._stop

    def pass_over(self, text: str) -> ReleasedText:
        """Release text that is not to be searched. Comes before any ``append``."""
        return ReleasedText(text)

    def append(self, text: str) -> ReleasedText:
        """Search the next part of the output. After a stop nothing is released any more."""
        if self._stop is not None:
            return ReleasedText("", self._stop)
        if not self._candidates:
            return ReleasedText(text)
        window = self._held + text
        for end in range(len(self._held), len(window)):
            self._advance(window[end])
            if self._stop is not None:
                self._held = ""
                start = end + 1 - (0 if self._include_stop else len(self._stop))
                return ReleasedText(window[:start], self._stop)
        safe = len(window) - max(candidate.matched for candidate in self._candidates)
        self._held = window[safe:]
        return ReleasedText(window[:safe])

    def finish(self) -> ReleasedText:
        """The output ends for another reason: release what was held."""
        rest, self._held = self._held, ""
        return ReleasedText(rest, self._stop)

    def _advance(self, letter: str) -> None:
        for candidate in self._candidates:
            if candidate.advance(letter) and len(candidate.text) > len(self._stop or ""):
                self._stop = candidate.text


class _Candidate:
    """One stop text and how much of it the output's end matches (Knuth, Morris, Pratt): constant work per letter."""

    __slots__ = ("_shorter", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0  #: length of the longest beginning of ``text`` that the output ends with
        self._shorter = _borders(text)

    def advance(self, letter: str) -> bool:
        """Take one more letter of the output; whether it completes the text."""
        while self.matched and self.text[self.matched] != letter:
            self.matched = self._shorter[self.matched - 1]
        self.matched += self.text[self.matched] == letter
        return self.matched == len(self.text)


def _borders(text: str) -> Sequence[int]:
    """For each beginning of ``text``: the length of the longest shorter beginning that it also ends with."""
    borders = [0] * len(text)
    length = 0
    for end in range(1, len(text)):
        while length and text[end] != text[length]:
            length = borders[length - 1]
        length += text[end] == text[length]
        borders[end] = length
    return borders
