"""The conversation, with a model that says what it is told to."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from baseboard.cli import chat as chat_command
from baseboard.cli.chat import Conversation, LineReader, TerminalReader, _talk
from baseboard.contract import RequestRejected, SamplingParams
from baseboard.engine.results import TextDelta


class Parrot:
    """Answers each question with its words in capitals; ``!`` is Ctrl-C, ``?`` a failure, ``#`` a refusal."""

    def __init__(self) -> None:
        self.asked: list[list[dict[str, str]]] = []
        self.closed = 0

    def stream_chat(self, messages: Sequence[dict[str, str]], params: SamplingParams) -> Iterator[TextDelta]:
        self.asked.append([dict(message) for message in messages])
        try:
            for word in messages[-1]["content"].split():
                if word == "!":
                    raise KeyboardInterrupt
                if word == "#":
                    raise RequestRejected("too long")
                failed = word == "?"
                yield TextDelta("r", 0, word.upper(), "error" if failed else None, "no luck" if failed else None)
        finally:
            self.closed += 1


class Lines:
    def __init__(self, *lines: str) -> None:
        self._lines = iter(lines)

    def read(self) -> str | None:
        return next(self._lines, None)


def talk(*lines: str, system: str | None = None) -> tuple[Parrot, Conversation]:
    parrot = Parrot()
    clock = iter(range(1000))
    conversation = Conversation(parrot, SamplingParams(), system, lambda: next(clock))  # pyright: ignore[reportArgumentType]
    _talk(conversation, Lines(*lines))
    assert parrot.closed == len(parrot.asked)
    return parrot, conversation


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_each_question_comes_with_all_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    parrot, conversation = talk("how are", "", "  you  ", system="be brief")
    system = {"role": "system", "content": "be brief"}
    assert parrot.asked == [
        [system, user("how are")],
        [system, user("how are"), assistant("HOWARE"), user("you")],
    ]
    assert capsys.readouterr().out == "HOWARE\nYOU\n"
    assert conversation.num_failed == 0


def test_reset_and_exit(capsys: pytest.CaptureFixture[str]) -> None:
    parrot, _ = talk("one", "/reset", "two", "/exit", "three", system="s")
    assert parrot.asked[1:] == [[{"role": "system", "content": "s"}, user("two")]]
    assert capsys.readouterr().err == "forgotten\n"


def test_an_unknown_command_is_no_question(capsys: pytest.CaptureFixture[str]) -> None:
    parrot, _ = talk("/help", "/usr and /bin")
    assert parrot.asked == [[user("/usr and /bin")]]
    assert capsys.readouterr().err.startswith("/help is unknown: /reset forgets")


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    parrot, conversation = talk("a b ! c", "next")
    assert parrot.asked[1] == [user("a b ! c"), assistant("AB"), user("next")]
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("AB\nNEXT\n", "stopped\n")
    assert conversation.num_failed == 0


def test_ctrl_c_before_the_first_word_forgets_the_question() -> None:
    parrot, _ = talk("! a", "next")
    assert parrot.asked[1] == [user("next")]


@pytest.mark.parametrize(("word", "said"), [("?", "the answer failed: no luck"), ("#", "too long")])
def test_a_failed_answer_is_said_and_forgotten(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    parrot, conversation = talk("one", f"a {word}", "two")
    assert parrot.asked[2] == [user("one"), assistant("ONE"), user("two")]
    assert capsys.readouterr().err == f"error: {said}; /reset begins anew\n"
    assert conversation.num_failed == 1


def test_the_times_of_all_answers() -> None:
    _, conversation = talk("one", "two")
    # The clock goes on by 1 a look: answer (0), stream (1), first token (2), end (3); then 4, 5, 6.
    assert conversation.timing.generating == 3 + 2
    assert conversation.timing.first_token == 1


def test_lines_from_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\r\n\nlast"))
    reader = LineReader()
    assert [reader.read() for _ in range(4)] == ["one", "", "last", None]


@pytest.mark.parametrize("end", [EOFError, KeyboardInterrupt])
def test_ctrl_d_and_ctrl_c_leave(end: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Iterator[Any] = iter(["hello", end()])

    def ask(prompt: str) -> str:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr("builtins.input", ask)
    reader = TerminalReader()
    assert [reader.read(), reader.read()] == ["hello", None]


def test_the_terminal_is_asked_only_where_both_ends_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(chat_command._reader("m"), LineReader)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert isinstance(chat_command._reader("m"), LineReader)
