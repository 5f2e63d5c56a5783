"""The check that a model with recorded steps equals the same without, over a stand-in for torch's CUDA graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import baseboard_cuda_model as model
from baseboard import LLM
from baseboard.contract import hookimpl
from baseboard.runtime.loader import wrap_model
from baseboard_cuda.backend import CudaBackend
from baseboard_cuda.check.programs import Programs
from baseboard_cuda.graphs import CudaGraphRunner, CudaStepGraph
from baseboard_cuda_model import recorded
from baseboard_cuda_model.recorded import Comparison, Said, compare
from families import build
from plugins.cuda.interpreted.fake_graphs import FakeGraphs

NEW_TOKENS = 5
PROMPTS = [{"prompt_token_ids": [3 + 7 * number + at for at in range(13 + number)]} for number in range(3)]
#: Each sequence grows into a second block of 16: with three blocks, others are swapped out for it.
POOLS = {"room": {}, "swap": {"num_kv_blocks": 3, "num_host_blocks": 8, "preemption": "swap", "max_model_len": 32}}


@pytest.fixture
def graphs(monkeypatch) -> FakeGraphs:
    fake = FakeGraphs()
    fake.install(monkeypatch)

    @hookimpl
    def graph_runner(self, layers):
        return CudaGraphRunner(torch.device("cpu"))

    monkeypatch.setattr(CudaBackend, "graph_runner", graph_runner)
    return fake


def tiny(**settings) -> LLM:
    """A random model whose attention, norms and logits are wide enough that a wrong key shows."""
    small = {"num_kv_blocks": 16, "max_num_seqs": 4, "max_num_batched_tokens": 32, "max_model_len": 64}
    return LLM(wrap_model(build("llama")), backend="cuda", dtype="float32", **(small | settings))


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_recorded_steps_say_the_same(graphs, pool) -> None:
    opened: list[LLM] = []

    def open_llm(**settings) -> LLM:
        opened.append(tiny(**pool, **settings))
        return opened[-1]

    found = compare(open_llm, PROMPTS, NEW_TOKENS)
    assert found.passed, found
    assert [llm.stats()["num_preemptions"] > 0 for llm in opened] == [bool(pool)] * 2
    assert found.recorded.replayed >= NEW_TOKENS - 1
    assert set(graphs.kernels) >= {"write_kv", "paged_attention", "rms_norm"}
    assert str(found).startswith("3 of 3 prompts equal, logprobs within ")


def test_numbers_that_are_baked_in_are_found(graphs, monkeypatch) -> None:
    """A replay that forgets to bring the step's lengths, tables and slots."""

    def replay(self, metadata) -> None:
        with torch.inference_mode():
            self._graph.replay()

    monkeypatch.setattr(CudaStepGraph, "replay", replay)
    found = compare(tiny, PROMPTS, NEW_TOKENS)
    assert found.recorded.replayed > 0
    assert not found.passed
    assert found.equal < len(PROMPTS)


def test_where_nothing_is_recorded_nothing_is_shown() -> None:
    """In the interpreter itself: both runs are told kernel by kernel."""
    found = compare(tiny, PROMPTS[:1], 2)
    assert found.equal == 1
    assert found.distances == [0.0, 0.0]
    assert not found.passed


TOLD = Said([[7, 8], [9, 9]], [[-1.0, -2.0], [-0.5, -0.5]], 0)
FOUND = Comparison(replace(TOLD, replayed=2), TOLD, 2)


def test_what_is_judged() -> None:
    assert FOUND.passed
    assert str(FOUND) == "2 of 2 prompts equal, logprobs within 0.0e+00 (allowed 1e-03), 2 steps replayed"
    close = replace(FOUND.recorded, logprobs=[[-1.0, -2.0005], [-0.5, -0.5]])
    assert replace(FOUND, recorded=close).passed


@pytest.mark.parametrize(
    "wrong",
    [
        {"recorded": replace(FOUND.recorded, tokens=[[7, 8], [9, 8]])},
        {"recorded": replace(FOUND.recorded, logprobs=[[-1.0, -2.002], [-0.5, -0.5]])},
        {"recorded": replace(FOUND.recorded, logprobs=[[-1.0, float("nan")], [-0.5, -0.5]])},
        {"recorded": replace(FOUND.recorded, replayed=0)},
        {"told": replace(TOLD, replayed=1)},
        {"new_tokens": 3},
    ],
    ids=["token", "logprob", "no-number", "nothing-replayed", "not-told", "ended-early"],
)
def test_what_differs_is_a_failure(wrong) -> None:
    assert not replace(FOUND, **wrong).passed


@pytest.mark.parametrize(("replayed", "code"), [(2, 0), (0, 1)])
def test_the_program_compares_in_every_pool(monkeypatch, capsys, replayed, code) -> None:
    """With room it passes; the exit code is that of the pool in which it does not."""
    results = iter([FOUND, replace(FOUND, recorded=replace(FOUND.recorded, replayed=replayed))])
    monkeypatch.setattr(model, "find_spec", lambda name: name)
    monkeypatch.setattr(recorded, "compare", lambda open_llm, prompts, new_tokens: next(results))
    assert recorded.main([]) == code
    said = capsys.readouterr().out
    assert "2 steps replayed with 256 blocks; 2 of 2 prompts equal" in said
    assert f"{replayed} steps replayed with 28 blocks\n" in said


def test_what_is_missing_is_named(monkeypatch, capsys) -> None:
    monkeypatch.setattr(model, "find_spec", lambda name: None if name == "gguf" else name)
    assert recorded.main([]) == model.NOT_HERE
    assert capsys.readouterr().out == "not installed: gguf\n"


@pytest.mark.parametrize(("code", "passed"), [(0, True), (1, False), (model.NOT_HERE, None)])
def test_its_line_in_the_report(tmp_path, code, passed) -> None:
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "$@"\nexit {code}\n')
    program.chmod(0o755)
    line = Programs({}, python=(str(program),)).recorded(new_tokens=4)
    assert line.what == "SmolLM2 with CUDA graphs equals SmolLM2 without, float32"
    assert line.result == "-m baseboard_cuda_model.recorded --backend cuda --new-tokens 4"
    assert line.passed is passed
