"""What a user who waits sees on stderr, and the times that come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from baseboard.cli.terminal import about

if TYPE_CHECKING:
    from baseboard.engine.progress import BatchReport, Progress


class RichProgress:
    """A line that moves, on a terminal; it is gone when the work is done."""

    def __init__(self, console: Console) -> None:
        self._console: Final = console

    @contextmanager
    def loading(self) -> Iterator[Callable[[str], None]]:
        with self._console.status(Text("loading", style="dim")) as status:
            yield lambda stage: status.update(Text(stage, style="dim"))

    @contextmanager
    def generating(self, num_prompts: int) -> Iterator[BatchReport]:
        columns = (SpinnerColumn(), TextColumn("{task.description}", style="dim"), *self._columns(num_prompts))
        with Bar(*columns, TimeElapsedColumn(), console=self._console, transient=True) as bar:
            yield _BarReport(bar, bar.add_task("reading", total=num_prompts))

    def _columns(self, num_prompts: int) -> tuple[BarColumn, MofNCompleteColumn] | tuple[()]:
        """One prompt is never half done, so a bar would show nothing."""
        return (BarColumn(bar_width=24), MofNCompleteColumn()) if num_prompts > 1 else ()


class _BarReport:
    def __init__(self, bar: Bar, task: TaskID) -> None:
        self._bar: Final = bar
        self._task: Final = task

    def step(self, num_finished: int, stats: Mapping[str, int]) -> None:
        generated = stats["num_generated_tokens"]
        what = f"{generated:,} tokens" if generated else "reading"
        self._bar.update(self._task, completed=num_finished, description=what)


class PlainProgress:
    """One line a stage, where nobody looks at a terminal; nothing while a batch runs."""

    def __init__(self, console: Console) -> None:
        self._console: Final = console

    @contextmanager
    def loading(self) -> Iterator[Callable[[str], None]]:
        yield self._say

    @contextmanager
    def generating(self, num_prompts: int) -> Iterator[PlainProgress]:
        self._say(f"generating for {num_prompts} prompt{'s' * (num_prompts != 1)}")
        yield self

    def step(self, num_finished: int, stats: Mapping[str, int]) -> None:
        del num_finished, stats

    def _say(self, stage: str) -> None:
        self._console.print(Text(stage), soft_wrap=True)


def make_progress() -> Progress:
    """The one that suits stderr."""
    console = about()
    return RichProgress(console) if console.is_terminal else PlainProgress(console)


class Stopwatch:
    """Passes everything on to another progress, and takes the time of one batch."""

    def __init__(self, shown: Progress, clock: Callable[[], float]) -> None:
        self._shown: Final = shown
        self._clock: Final = clock
        self.seconds = 0.0  #: that the batch took
        self.first_token: float | None = None  #: seconds until the batch's first token

    @contextmanager
    def loading(self) -> Iterator[Callable[[str], None]]:
        with self._shown.loading() as say:
            yield say

    @contextmanager
    def generating(self, num_prompts: int) -> Iterator[BatchReport]:
        with self._shown.generating(num_prompts) as report:
            began = self._clock()
            try:
                yield _TimedReport(self, report, began)
            finally:
                self.seconds = self._clock() - began

    def seen(self, began: float) -> None:
        """There is a token."""
        if self.first_token is None:
            self.first_token = self._clock() - began


class _TimedReport:
    def __init__(self, watch: Stopwatch, report: BatchReport, began: float) -> None:
        self._watch: Final = watch
        self._report: Final = report
        self._began: Final = began

    def step(self, num_finished: int, stats: Mapping[str, int]) -> None:
        if stats["num_generated_tokens"]:
            self._watch.seen(self._began)
        self._report.step(num_finished, stats)
