"""``baseboard generate``: answers to prompts, all in one batch."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from baseboard.cli import options, terminal
from baseboard.cli.progress import Stopwatch, make_progress
from baseboard.cli.summary import Timing, backend_as_dict, memory_as_dict, print_memory, print_summary
from baseboard.contract import RequestRejected, SamplingParams

if TYPE_CHECKING:
    from baseboard.engine.results import CompletionOutput, RequestOutput
    from baseboard.llm import LLM

_STDIN: Final = "-"
_MOST_AT_ONCE: Final = 64
_INTERRUPTED: Final = 130


def generate(
    prompts: Annotated[
        list[str] | None, typer.Argument(help="The prompts; none, or -, reads them from stdin, one a line.")
    ] = None,
    model: options.Model = "smollm2",
    chat: Annotated[
        bool, typer.Option("--chat/--raw", help="Ask each prompt as a user's message, or go on writing it as it is.")
    ] = False,
    n: Annotated[int, typer.Option("-n", "--samples", help="Answers to each prompt.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON document.")] = False,
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.7,
    top_p: options.TopP = 0.95,
    seed: options.Seed = None,
    backend: options.Backend = "auto",
    dtype: options.DType = "bfloat16",
    num_kv_blocks: options.NumKVBlocks = None,
    memory_fraction: options.MemoryFraction = 0.9,
    max_model_len: options.MaxModelLen = None,
    max_num_seqs: Annotated[
        int | None,
        typer.Option(help="Sequences in one step; else as many as asked for, up to 64.", rich_help_panel="Engine"),
    ] = None,
    policy: options.Policy = "fcfs",
    verbose: options.Verbose = False,
) -> None:
    """Generate text for prompts. Answers go to stdout, everything about them to stderr.

    Exits with 0; 1 when something failed; 130 when interrupted.
    """
    params = SamplingParams(n=n, max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    texts = _texts(prompts or [_STDIN])
    at_once = max(n, min(_MOST_AT_ONCE, len(texts) * n)) if max_num_seqs is None else max_num_seqs
    engine = options.EngineOptions(
        model, backend, dtype, num_kv_blocks, memory_fraction, max_model_len, at_once, policy
    )
    watch = Stopwatch(make_progress(), time.perf_counter)
    try:
        with engine.open(watch) as llm:
            outputs = _ask(llm, texts, params, chat)
            timing = Timing(watch.seconds, watch.first_token)
            if as_json:
                typer.echo(json.dumps(_document(llm, outputs, timing), indent=2, allow_nan=False))
            else:
                _print_answers(outputs, texts)
            if verbose:
                print_memory(llm.built)
            print_summary(llm.built, llm.stats(), timing)
    except KeyboardInterrupt:
        terminal.note("interrupted")
        raise typer.Exit(_INTERRUPTED) from None
    _report_failures(outputs)


def _texts(prompts: Sequence[str]) -> list[str]:
    texts = [text for prompt in prompts for text in (_lines() if prompt == _STDIN else (prompt,))]
    if not texts:
        raise RequestRejected("there is no prompt: give some, or write one a line to stdin")
    return texts


def _lines() -> Iterator[str]:
    """Prompts from stdin; empty lines are none."""
    if sys.stdin.isatty():
        terminal.note("prompts, one a line; Ctrl-D ends")
    return (text for line in sys.stdin if (text := line.rstrip("\r\n")).strip())


def _ask(llm: LLM, texts: Sequence[str], params: SamplingParams, chat: bool) -> list[RequestOutput]:
    if chat:
        return llm.chat([[{"role": "user", "content": text}] for text in texts], params)
    return llm.generate(texts, params)


def _print_answers(outputs: Sequence[RequestOutput], texts: Sequence[str]) -> None:
    """One answer is printed alone, of several each comes below its number and prompt."""
    out = terminal.answers()
    several = sum(len(output.outputs) for output in outputs) > 1
    for number, (output, text) in enumerate(zip(outputs, texts, strict=True), 1):
        for sample in output.outputs:
            if several:
                out.write(terminal.printable(_heading(number, output, sample, text), out))
            out.write(terminal.printable(sample.text, out).rstrip("\n") + "\n")
            if several:
                out.write("\n")
    out.flush()


def _heading(number: int, output: RequestOutput, sample: CompletionOutput, text: str) -> str:
    place = f"{number}.{sample.index + 1}" if len(output.outputs) > 1 else f"{number}"
    return f"[{place}] {' '.join(text.split())}\n"


def _document(llm: LLM, outputs: Sequence[RequestOutput], timing: Timing) -> dict[str, Any]:
    stats = llm.stats()
    return {
        "model": llm.built.model.name,
        "backend": backend_as_dict(llm.built),
        "outputs": [asdict(output) for output in outputs],
        "timing": timing.as_dict(stats),
        "stats": stats,
        "memory": memory_as_dict(llm.built),
    }


def _report_failures(outputs: Sequence[RequestOutput]) -> None:
    failed = [
        (number, sample)
        for number, output in enumerate(outputs, 1)
        for sample in output.outputs
        if sample.finish_reason == "error"
    ]
    for number, sample in failed:
        terminal.note(f"error: prompt {number}: {sample.error}", style="red")
    if failed:
        raise typer.Exit(1)
