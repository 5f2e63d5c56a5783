"""``baseboard chat``: a conversation, answered as it is written."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated, Final, Protocol, TypeAlias

import typer

from baseboard.cli import options, terminal
from baseboard.cli.progress import make_progress
from baseboard.cli.summary import Timing, print_memory, print_summary
from baseboard.contract import BackendFault, RequestRejected, SamplingParams

if TYPE_CHECKING:
    from baseboard.engine.results import TextDelta
    from baseboard.llm import LLM

_INTERRUPTED: Final = 130
_HELP: Final = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"

Message: TypeAlias = dict[str, str]


def chat(
    model: options.Model = "smollm2",
    system: Annotated[str | None, typer.Option(help="The system message: how to answer.")] = None,
    max_tokens: options.MaxTokens = 512,
    temperature: options.Temperature = 0.7,
    top_p: options.TopP = 0.95,
    seed: options.Seed = None,
    backend: options.Backend = "auto",
    dtype: options.DType = "bfloat16",
    num_kv_blocks: options.NumKVBlocks = None,
    memory_fraction: options.MemoryFraction = 0.9,
    max_model_len: options.MaxModelLen = None,
    max_num_seqs: Annotated[
        int, typer.Option(help="Sequences in one step; a conversation needs one.", rich_help_panel="Engine")
    ] = 1,
    verbose: options.Verbose = False,
) -> None:
    """Talk to a model. /reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer.

    Where stdin is no terminal each of its lines is a message. Exits with 0; 1 when an answer failed; 130 when
    interrupted while the model is loaded.
    """
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    engine = options.EngineOptions(model, backend, dtype, num_kv_blocks, memory_fraction, max_model_len, max_num_seqs)
    try:
        with engine.open(make_progress()) as llm:
            if verbose:
                print_memory(llm.built)
            conversation = Conversation(llm, params, system, time.perf_counter)
            _talk(conversation, _reader(llm.built.model.name))
            print_summary(llm.built, llm.stats(), conversation.timing)
    except KeyboardInterrupt:
        terminal.note("interrupted")
        raise typer.Exit(_INTERRUPTED) from None
    if conversation.num_failed:
        raise typer.Exit(1)


class Conversation:
    """Messages so far, and the way to the next answer. Answers go to stdout as they are written."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None, clock: Callable[[], float]) -> None:
        self._llm: Final = llm
        self._params: Final = params
        self._clock: Final = clock
        self._beginning: Final[list[Message]] = [{"role": "system", "content": system}] if system else []
        self._messages: Final[list[Message]] = []
        self._seconds = 0.0
        self._first_token: float | None = None
        self.num_failed = 0

    @property
    def timing(self) -> Timing:
        """Of all answers together, and until the first token of the first."""
        return Timing(self._seconds, self._first_token)

    def reset(self) -> None:
        """Forget all but the system message."""
        self._messages.clear()

    def answer(self, text: str) -> None:
        """Say ``text`` and write the answer. Ctrl-C keeps what is written by then; a failure keeps nothing."""
        question: Message = {"role": "user", "content": text}
        said: list[str] = []
        began = self._clock()
        try:
            self._stream([*self._beginning, *self._messages, question], said)
        except KeyboardInterrupt:
            terminal.note("stopped")
        except (RequestRejected, BackendFault) as error:
            self.num_failed += 1
            hint = "; /reset begins anew" if self._messages else ""
            terminal.note(f"error: {error}{hint}", style="red")
            return
        finally:
            self._seconds += self._clock() - began
        if said:
            self._messages.extend((question, {"role": "assistant", "content": "".join(said)}))

    def _stream(self, messages: list[Message], said: list[str]) -> None:
        out = terminal.answers()
        began = self._clock()
        with closing(self._llm.stream_chat(messages, self._params)) as deltas:  # pyright: ignore[reportArgumentType]
            try:
                for delta in deltas:
                    if self._first_token is None:
                        self._first_token = self._clock() - began
                    _raise_failure(delta)
                    said.append(delta.text)
                    out.write(terminal.printable(delta.text, out))
                    out.flush()
            finally:
                out.write("\n")
                out.flush()


def _raise_failure(delta: TextDelta) -> None:
    if delta.finish_reason == "error":
        raise RequestRejected(f"the answer failed: {delta.error}")


class Reader(Protocol):
    def read(self) -> str | None:
        """The next message; None when there will be none."""
        ...


class TerminalReader:
    """Asks, with a history and editing keys where there is readline."""

    def __init__(self) -> None:
        with suppress(ImportError):  # not on every platform
            import readline  # noqa: F401 - importing it is what makes input() use it

    def read(self) -> str | None:
        try:
            return input("> ")
        except (EOFError, KeyboardInterrupt):
            terminal.about().print()
            return None


class LineReader:
    """Reads what is piped in, a line each."""

    def read(self) -> str | None:
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None


def _reader(model: str) -> Reader:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return LineReader()
    terminal.note(f"{model}. {_HELP}")
    return TerminalReader()


def _talk(conversation: Conversation, reader: Reader) -> None:
    while (line := reader.read()) is not None:
        text = line.strip()
        if text == "/exit":
            return
        if text == "/reset":
            conversation.reset()
            terminal.note("forgotten")
        elif text.startswith("/") and " " not in text:
            terminal.note(f"{text} is unknown: {_HELP}")
        elif text:
            conversation.answer(text)
