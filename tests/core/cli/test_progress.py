from __future__ import annotations

import io

import pytest
from rich.console import Console

from baseboard.cli.progress import PlainProgress, RichProgress, Stopwatch, make_progress
from baseboard.engine.progress import Progress, SilentProgress

NOTHING = {"num_generated_tokens": 0}
SOME = {"num_generated_tokens": 1234}


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)


def written(on: Console) -> str:
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue()


def drive(progress: Progress, num_prompts: int = 3) -> None:
    with progress.loading() as say:
        say("reading [weights]")
    with progress.generating(num_prompts) as report:
        report.step(0, NOTHING)
        report.step(2, SOME)


def test_without_a_terminal_each_stage_is_one_line() -> None:
    on = console(terminal=False)
    drive(PlainProgress(on))
    assert written(on) == "reading [weights]\ngenerating for 3 prompts\n"


def test_on_a_terminal_a_line_moves_and_then_is_gone() -> None:
    on = console(terminal=True)
    drive(RichProgress(on))
    output = written(on)
    assert "reading [weights]" in output
    assert "1,234 tokens" in output
    assert "2/3" in output
    assert output.count("\x1b[?25l") == output.count("\x1b[?25h") == 2  # the cursor is hidden, and shown again
    assert output.endswith("\x1b[2K")  # the last line is erased


def test_one_prompt_has_no_bar() -> None:
    on = console(terminal=True)
    drive(RichProgress(on), num_prompts=1)
    assert "1,234 tokens" in written(on)
    assert "/1" not in written(on)


def test_the_cursor_comes_back_when_it_is_interrupted() -> None:
    on = console(terminal=True)
    with pytest.raises(KeyboardInterrupt), RichProgress(on).generating(2):
        raise KeyboardInterrupt
    assert written(on).rindex("\x1b[?25h") > written(on).rindex("\x1b[?25l")


def test_the_one_that_suits_stderr() -> None:
    assert isinstance(make_progress(), PlainProgress)  # a test's stderr is no terminal


def test_the_stopwatch_takes_the_time_and_passes_all_on() -> None:
    times = iter([10.0, 10.5, 14.0])
    on = console(terminal=False)
    watch = Stopwatch(PlainProgress(on), lambda: next(times))
    drive(watch)
    assert (watch.seconds, watch.first_token) == (4.0, 0.5)
    assert written(on) == "reading [weights]\ngenerating for 3 prompts\n"


def test_an_interrupted_batch_has_its_time_and_no_first_token() -> None:
    times = iter([10.0, 11.0])
    watch = Stopwatch(SilentProgress(), lambda: next(times))
    with pytest.raises(KeyboardInterrupt), watch.generating(1):
        raise KeyboardInterrupt
    assert (watch.seconds, watch.first_token) == (1.0, None)
