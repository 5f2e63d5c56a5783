"""One sample's text and log-probabilities while they grow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from baseboard.contract import SamplingParams, TokenLogprobs
from baseboard.engine.detokenizer import Decoder, Detokenizer
from baseboard.engine.results import CompletionOutput, by_token, cumulative
from baseboard.engine.stop_strings import StopMatcher
from baseboard.request.request import Request
from baseboard.request.status import FinishReason


class NoText:
    """The decoder of a model without a tokenizer."""

    def decode(self, token_ids: list[int], /, *, skip_special_tokens: bool) -> str:
        del token_ids, skip_special_tokens
        return ""


class Sample:
    """Follows one request of the scheduler, from its first token to its finished output."""

    def __init__(self, index: int, request: Request, decoder: Decoder) -> None:
        params = request.spec.params
        self.request: Final = request
        self.index: Final = index
        self._params: Final[SamplingParams] = params
        self._detokenizer: Final = Detokenizer(decoder, skip_special_tokens=params.skip_special_tokens)
        self._matcher: Final = StopMatcher(params)
        self._logprobs: Final[list[TokenLogprobs]] = []
        self._text: Final[list[str]] = []
        self._num_tokens = 0

    def take(self, token: int, logprobs: Sequence[TokenLogprobs]) -> str:
        """The text that may be shown after one more token. ``stop`` says afterwards whether it ended the output.

        A token that stops by its id is not part of the text.
        """
        self._logprobs.extend(logprobs)
        self._num_tokens += 1
        by_id = self.request.finish_reason == "stop"
        text = "" if by_id else self._detokenizer.append([token])
        search = self._num_tokens > self._params.min_tokens
        released = (self._matcher.append(text) if search else self._matcher.pass_over(text)).text
        if self.request.finished:
            released += self._release()
        self._text.append(released)
        return released

    @property
    def stop(self) -> str | None:
        """The stop text that was met."""
        return self._matcher.stop

    @property
    def finish_reason(self) -> FinishReason | None:
        """A stop text that the last possible token completes counts, though the scheduler ended it for its length."""
        return "stop" if self.stop is not None else self.request.finish_reason

    @property
    def stop_reason(self) -> int | str | None:
        return self.stop if self.stop is not None else self.request.stop_reason

    def end(self) -> str:
        """The text still held back when a request is ended from outside."""
        released = self._release()
        self._text.append(released)
        return released

    def output(self) -> CompletionOutput:
        request = self.request
        wanted = self._params.logprobs is not None
        return CompletionOutput(
            index=self.index,
            text="".join(self._text),
            token_ids=request.outputs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            logprobs=[by_token(position) for position in self._logprobs] if wanted else None,
            cumulative_logprob=cumulative(self._logprobs) if wanted else None,
            error=request.error,
            num_nans=request.num_nans,
        )

    def _release(self) -> str:
        tail = self._detokenizer.finish()
        return self._matcher.append(tail).text + self._matcher.finish().text
