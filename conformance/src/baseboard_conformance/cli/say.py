"""What is said to the person at the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from baseboard_conformance.outcome import Outcome, Result
from baseboard_conformance.report.document import Document
from baseboard_conformance.report.matrix import tallies
from baseboard_conformance.report.replaying import replay_command

_COLOURS = {Outcome.PASS: "green", Outcome.NOT_CLAIMED: "dim", Outcome.WAIVED: "yellow"}


def say(text: str) -> None:
    """A line on standard output; brackets are no markup, lines are not broken."""
    Console().print(Text(text), soft_wrap=True)


def complain(text: str) -> None:
    Console(stderr=True).print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)


def tell_result(result: Result) -> None:
    """One line while the run goes on, for what a person must see; the rest is in the summary."""
    if result.outcome in {Outcome.PASS, Outcome.NOT_CLAIMED}:
        return
    first = result.message.partition("\n")[0]
    line = Text.assemble(
        (f"{result.outcome.value:11}", _COLOURS.get(result.outcome, "red")), f" {result.case}: {first}"
    )
    Console().print(line, soft_wrap=True)


def tell_summary(document: Document) -> None:
    for tally in tallies(document.results):
        counts = ", ".join(f"{count} {outcome.value}" for outcome, count in tally.counts.items())
        say(f"  {tally.group:14} {counts}")
    for result in document.results:
        if result.outcome.bad or result.outcome is Outcome.ERROR:
            say(f"\n{result.outcome.value} {result.case} (seed {result.seed})")
            say("  " + result.message.strip().replace("\n", "\n  "))
            say(f"  again: {replay_command(result.case, document.asked, document.plain['seed'])}")
    plain = document.plain
    say(f"\n{plain['backend']['name']}: {plain['verdict']['word']}: {document.sentence}")
