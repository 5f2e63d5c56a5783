"""The command line as a user has it: answers on stdout, everything else on stderr, Ctrl-C, and what is left behind."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner, Result

from baseboard.cli.app import build_app
from baseboard.contract import BaseboardError
from families import VOCAB_SIZE, build

TEMPLATE = "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }};{% endfor %}a:"
SMALL = ("--backend", "reference", "--dtype", "float32", "--num-kv-blocks", "256", "--max-model-len", "200")
GREEDY = ("--temperature", "0", "--max-tokens", "8")
MAIN = "from baseboard.cli.main import main; main()"
#: The same, with the terminal it was given as its own: so that Ctrl-C typed there reaches it.
OWNS_ITS_TERMINAL = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {MAIN}"
#: An answer that takes longer than it takes to press Ctrl-C.
ENDLESS = ("--max-model-len", "4000", "--max-tokens", "3900", "--temperature", "0")
PATIENCE = 60.0  # seconds: only a test that fails waits that long


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama whose tokens are single characters, with a chat template. It has a lot to say, and no end."""
    path = tmp_path_factory.mktemp("tiny")
    model: Any = build("llama")
    model.config.max_position_embeddings = 8192
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    model.save_pretrained(path)
    # Control characters have printable stand-ins.
    vocab = {chr(at if at >= 32 else 0x100 + at): at for at in range(VOCAB_SIZE)}
    letters = Tokenizer(models.WordLevel(vocab, unk_token=chr(0x100)))
    letters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    letters.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def generate(folder: str) -> Callable[..., Result]:
    """``baseboard generate`` in this process; an error of Baseboard's is in ``exception``."""

    def run(*arguments: str, text: str | None = None) -> Result:
        command = ["generate", "--model", folder, *SMALL, *GREEDY, *arguments]
        result = CliRunner().invoke(build_app(), command, input=text)
        assert result.exception is None or isinstance(result.exception, SystemExit | BaseboardError), result.exception
        return result

    return run


def document(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


# --- generate ---------------------------------------------------------------------------------------------------------


def test_one_answer_stands_alone_on_stdout(generate: Callable[..., Result]) -> None:
    result = generate("hello")
    answer = document(generate("hello", "--json"))["outputs"][0]["outputs"][0]["text"]
    assert result.stdout == answer + "\n"
    *stages, summary = result.stderr.splitlines()
    assert "backend reference: reference was asked for" in stages
    assert "generating for 1 prompt" in stages
    assert re.fullmatch(
        r"reference on .+ \(reference was asked for\): 5 prompt tokens, 8 generated, \d+\.\d tokens/s, "
        r"first token after \d+\.\d\d s, prefix cache 0 \(0%\), 0 preemptions",
        summary,
    )


def test_several_answers_have_headings(generate: Callable[..., Result]) -> None:
    result = generate("hello", "two\nlines", "-n", "2")
    outputs = document(generate("hello", "two\nlines", "-n", "2", "--json"))["outputs"]
    texts = [sample["text"] for output in outputs for sample in output["outputs"]]
    headings = ["[1.1] hello", "[1.2] hello", "[2.1] two lines", "[2.2] two lines"]
    expected = [f"{heading}\n{text}\n\n" for heading, text in zip(headings, texts, strict=True)]
    assert result.stdout == "".join(expected)


def test_json_has_everything(generate: Callable[..., Result]) -> None:
    found = document(generate("hello", "--json", "--seed", "7", "--temperature", "1", "--top-p", "0.9"))
    assert set(found) == {"model", "backend", "outputs", "timing", "stats", "memory"}
    assert found["backend"]["name"] == "reference"
    assert found["backend"]["why"] == "reference was asked for"
    (output,) = found["outputs"]
    assert output["prompt"] == "hello"
    assert len(output["outputs"][0]["token_ids"]) == found["stats"]["num_generated_tokens"]
    assert found["timing"]["tokens_per_second"] > 0
    assert found["memory"]["num_kv_blocks"] == 256
    again = document(generate("hello", "--json", "--seed", "7", "--temperature", "1", "--top-p", "0.9"))
    for (measured,) in (again["outputs"], found["outputs"]):
        times = measured.pop("metrics")
        assert times["queued_at"] <= times["first_scheduled_at"] <= times["first_token_at"] <= times["finished_at"]
    assert again["outputs"] == found["outputs"]


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_prompts_from_stdin_one_a_line(generate: Callable[..., Result], arguments: tuple[str, ...]) -> None:
    found = document(generate(*arguments, "--json", text="hello\n\n  \r\nworld\r\nlast"))
    assert [output["prompt"] for output in found["outputs"]] == ["hello", "world", "last"]


def test_chat_wraps_each_prompt(generate: Callable[..., Result]) -> None:
    found = document(generate("hello", "you", "--chat", "--json"))
    assert [output["prompt"] for output in found["outputs"]] == ["u:hello;a:", "u:you;a:"]
    raw = document(generate("u:hello;a:", "u:you;a:", "--raw", "--json"))
    assert [output["outputs"] for output in raw["outputs"]] == [output["outputs"] for output in found["outputs"]]


def test_verbose_says_where_the_memory_goes(generate: Callable[..., Result]) -> None:
    result = generate("hello", "--verbose")
    rows = [line.rsplit(maxsplit=2) for line in result.stderr.splitlines() if line.endswith(" MiB")]
    items = [row[0].strip() for row in rows]
    assert items == ["weights", "libraries and buffers", "activation peak", "KV cache", "margin", "budget"]
    assert "256 KV blocks of 16 tokens" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--temperature", "-1"), "temperature=-1.0 is not allowed"),
        (("--max-tokens", "0"), "max_tokens=0 is not allowed"),
        (("--dtype", "int3"), "dtype='int3' is unknown"),
        (("--backend", "abacus"), "backend 'abacus' is not installed"),
        (("--model", "./nowhere"), "no model at './nowhere'"),
        (("--num-kv-blocks", "0"), "num_kv_blocks=0 must be at least 1"),
        (("-n", "3", "--max-num-seqs", "2"), "n=3 samples need as many places, but max_num_seqs=2"),
        (("x" * 200,), "prompt 1: the prompt has 200 tokens, but max_model_len=200"),
    ],
)
def test_errors_are_typed(generate: Callable[..., Result], arguments: tuple[str, ...], said: str) -> None:
    result = generate("hello", *arguments)
    assert isinstance(result.exception, BaseboardError)
    assert said in str(result.exception)
    assert result.stdout == ""


def test_no_prompt_at_all(generate: Callable[..., Result]) -> None:
    assert "there is no prompt" in str(generate(text="\n \n").exception)


def test_an_answer_that_failed_is_an_error(generate: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    def no_luck(*_: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr("baseboard.runtime.executor.LocalExecutor._forward", no_luck)
    result = generate("hello", "world")
    assert result.exit_code == 1
    assert "error: prompt 1: RuntimeError: no luck\nerror: prompt 2: RuntimeError: no luck\n" in result.stderr


# --- in processes of their own ----------------------------------------------------------------------------------------


def environment(**variables: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("BASEBOARD_")}
    return clean | {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "TERM": "xterm-256color"} | variables


def command_line(*arguments: str, text: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        input=text,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_the_demo() -> None:
    """The real model on whatever ``auto`` takes here, as ``make demo`` runs it."""
    result = command_line(
        "generate", "--chat", "What is the capital of France?", "--temperature", "0", "--max-tokens", "64"
    )
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout
    summary = result.stderr.splitlines()[-1]
    assert re.match(r"\w+ on .+ \(.+\): .*\d+\.\d tokens/s", summary)
    assert "Traceback" not in result.stderr
    assert "Warning" not in result.stderr


def test_an_error_is_one_line_and_exit_code_1() -> None:
    result = command_line("generate", "--max-tokens", "0", "hello")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "error: max_tokens=0 is not allowed: it must be at least 1\n"


def test_a_chat_through_pipes(folder: str) -> None:
    """A question that the model has no room for is refused, and the conversation goes on."""
    text = f"hello\n/reset\nhello\n{'x' * 200}\n/exit\nnever\n"
    result = command_line("chat", "--model", folder, *SMALL, *GREEDY, "--system", "s", text=text)
    assert result.returncode == 1, result.stderr
    first, second = result.stdout.split("\n")[:2]
    assert first == second != ""
    *_, error, summary = result.stderr.splitlines()
    assert error.startswith("error: the prompt has ")
    assert error.endswith("/reset begins anew")
    assert "16 generated" in summary
    assert "\x1b" not in result.stdout + result.stderr


# --- on a terminal ----------------------------------------------------------------------------------------------------


class OnTerminal:
    """A command on a terminal of its own, and somebody who types there."""

    def __init__(self, *arguments: str) -> None:
        self._keyboard, self._screen = pty.openpty()
        self.modes = termios.tcgetattr(self._screen)
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNS_ITS_TERMINAL, *arguments],
            stdin=self._screen,
            stdout=self._screen,
            stderr=self._screen,
            start_new_session=True,
            env=environment(),
        )
        self.shown = ""

    def type(self, keys: str) -> None:
        os.write(self._keyboard, keys.encode())

    def wait_for(self, pattern: str) -> None:
        """Read the screen until what is new on it matches."""
        begin, deadline = len(self.shown), time.monotonic() + PATIENCE
        while not re.search(pattern, self.shown[begin:]):
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.shown!r}"
            self._read(1.0)

    def wait(self) -> int:
        """Read until the command has ended."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end: {self.shown!r}"
            self._read(0.1)
        while self._read(0.0):
            pass
        return self.process.returncode

    def check_left_as_found(self) -> None:
        """The terminal's modes are as before, the cursor is shown, and no process is left."""
        assert termios.tcgetattr(self._screen) == self.modes
        assert self.shown.rfind("\x1b[?25h") >= self.shown.rfind("\x1b[?25l")
        with pytest.raises(ProcessLookupError):
            os.killpg(self.process.pid, 0)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._keyboard)
        os.close(self._screen)

    def _read(self, patience: float) -> bool:
        ready, _, _ = select.select([self._keyboard], [], [], patience)
        if ready:
            self.shown += os.read(self._keyboard, 65536).decode(errors="replace")
        return bool(ready)


@pytest.fixture
def on_terminal() -> Iterator[Callable[..., OnTerminal]]:
    started: list[OnTerminal] = []

    def start(*arguments: str) -> OnTerminal:
        started.append(OnTerminal(*arguments))
        return started[-1]

    yield start
    for command in started:
        command.close()


def test_ctrl_c_in_the_middle_of_a_batch(folder: str, on_terminal: Callable[..., OnTerminal]) -> None:
    prompts = [f"prompt {number}" for number in range(50)]
    command = on_terminal("generate", "--model", folder, *SMALL, *ENDLESS, "--max-num-seqs", "1", *prompts)
    command.wait_for(r"[1-9]\d* tokens")
    command.type("\x03")
    assert command.wait() == 130
    assert "interrupted" in command.shown
    assert "Traceback" not in command.shown
    command.check_left_as_found()


def test_ctrl_c_while_loading(folder: str, on_terminal: Callable[..., OnTerminal]) -> None:
    command = on_terminal("generate", "--model", folder, *SMALL, "hello")
    command.wait_for("starting")
    command.type("\x03")
    assert command.wait() == 130
    assert "Traceback" not in command.shown
    command.check_left_as_found()


def test_a_chat_on_a_terminal(folder: str, on_terminal: Callable[..., OnTerminal]) -> None:
    """Ctrl-C stops the answer and nothing else; Ctrl-D leaves."""
    command = on_terminal("chat", "--model", folder, *SMALL, *ENDLESS)
    command.wait_for("> ")
    assert "Ctrl-D leaves" in command.shown
    for question in ("hi", "again"):
        command.type(f"{question}\n")
        command.wait_for(rf"{question}\r\n[^\r]{{5}}")
        command.type("\x03")
        command.wait_for("stopped[^>]*> ")
    command.type("/reset\n")
    command.wait_for("forgotten[^>]*> ")
    command.type("\x04")
    assert command.wait() == 0
    assert "tokens/s" in command.shown
    assert "Traceback" not in command.shown
    command.check_left_as_found()
