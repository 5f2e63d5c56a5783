from __future__ import annotations

import io
import sys

import pytest

from baseboard.cli import terminal


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_model_cannot_steer_the_terminal() -> None:
    text = "a\tb\nc \x1b[31mred\x07 \x9b é 你\r"
    assert terminal.printable(text, Terminal()) == "a\tb\nc \ufffd[31mred\ufffd \ufffd é 你\ufffd"
    assert terminal.printable(text, io.StringIO()) == text  # a file gets what the model said


def test_a_letter_that_stdout_does_not_have_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    out = terminal.answers()
    out.write("é")
    out.flush()
    assert raw.getvalue() == b"\\xe9"


def test_notes_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.note("a [bold]note[/bold]")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "a [bold]note[/bold]\n")
