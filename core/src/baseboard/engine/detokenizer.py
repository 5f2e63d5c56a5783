"""Tokens to text, a few at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

_MARK: Final = "\N{REPLACEMENT CHARACTER}"
#: A character that is not complete yet has at most 3 of its 4 bytes, and shows as at most a mark for each.
_MARKS_OF_AN_INCOMPLETE_CHARACTER: Final = 3
#: Complete tokens kept before the new ones, since a token's text may depend on having a predecessor.
_CONTEXT: Final = 8
#: Tokens that may wait for a character to become whole.
_PENDING: Final = 16


class Decoder(Protocol):
    """A tokenizer's half that is needed here; any Hugging Face tokenizer is one."""

    def decode(self, token_ids: list[int], /, *, skip_special_tokens: bool) -> str: ...


class Detokenizer:
    """The text of one output while it grows. Both streamed and whole texts come from here, so they are the same.

    The deltas of ``append`` and the rest from ``finish`` joined are what the decoder makes of the whole list, in
    whatever portions the tokens come. A delta never ends inside a character. Each token costs about one call of the
    decoder, with a bounded number of ids. A token's text may depend on its near predecessors only, so a decoder that
    tidies up spaces afterwards has to have that switched off::

        ... 17  4 | 23  9  8 | 61  62
                    context    pending        one decode of both; what follows the context's text is new

    A decoder with *byte fallback* turns a whole run of byte tokens into marks when one byte of it is bad. Characters
    already handed out cannot be taken back: here such a run keeps its whole characters, and only what is left of
    it becomes marks.
    """

    def __init__(self, decoder: Decoder, *, skip_special_tokens: bool) -> None:
        self._decoder = decoder
        self._skip_special_tokens = skip_special_tokens
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []
        self._pending_text = ""
        self._released = 0  # characters of the pending text that were handed out

    def append(self, token_ids: Iterable[int]) -> str:
        """The text that has become certain with these tokens; often empty."""
        return "".join([self._append(token) for token in token_ids])

    def finish(self) -> str:
        """The text still held: a character that was never completed, as the decoder shows it."""
        rest = self._pending_text[self._released :]
        self._released = len(self._pending_text)
        return rest

    def _append(self, token: int) -> str:
        self._pending.append(token)
        text = self._decode_pending()
        if text == self._pending_text and self._adds_nothing(token):
            self._pending.pop()
            return ""
        self._pending_text = text
        if not text.endswith(_MARK):
            return self._settle()
        held = min(len(text) - len(text.rstrip(_MARK)), _MARKS_OF_AN_INCOMPLETE_CHARACTER)
        delta = self._release(len(text) - held)
        if len(self._pending) > _PENDING:
            delta += self._shorten()
        return delta

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._decoder.decode(list(tokens), skip_special_tokens=self._skip_special_tokens)

    def _decode_pending(self) -> str:
        text = self._decode([*self._context, *self._pending])
        if text.startswith(self._context_text):
            return text[len(self._context_text) :]
        # The new token spoils its predecessors (a run of fallback bytes): from here on it starts a text of its own.
        self._context, self._context_text = [], ""
        return self._decode(self._pending)

    def _adds_nothing(self, token: int) -> bool:
        """Whether the token has no text anywhere: it is special and skipped, or unknown."""
        # Twice, because a decoder may strip a space from the first token.
        return not self._decode([token, token])

    def _release(self, end: int) -> str:
        delta = self._pending_text[self._released : end]
        self._released = max(self._released, end)
        return delta

    def _settle(self) -> str:
        """Hand out all pending text: its last character is whole, so no later token can change it."""
        delta = self._release(len(self._pending_text))
        self._context += self._pending
        self._context_text += self._pending_text
        if len(self._context) > _CONTEXT:
            self._context = self._pending
            self._context_text = self._decode(self._context)
        self._pending, self._pending_text, self._released = [], "", 0
        return delta

    def _shorten(self) -> str:
        """Hand out and forget the oldest of many pending tokens: no character is that long, so they are garbage.

        The cut is one where both sides by themselves read as they do together, so it divides no sequence of bytes
        that shows as one mark, and it leaves all bytes of a character that may still become whole.
        """
        for cut in range(len(self._pending) - _MARKS_OF_AN_INCOMPLETE_CHARACTER, 0, -1):
            tail = self._decode(self._pending[cut:])
            head = self._decode([*self._context, *self._pending[:cut]])
            if head + tail == self._context_text + self._pending_text:
                break
        else:  # the decoder spoils a whole run for one bad byte: only its end can still matter
            cut = len(self._pending) - 1
            tail = self._decode(self._pending[cut:])
        dropped = len(self._pending_text) - len(tail)
        delta = self._release(dropped)
        self._pending, self._pending_text = self._pending[cut:], tail
        self._context, self._context_text = [], ""
        self._released -= dropped
        return delta
