"""An installed instrument sees every call that the core makes; and the core makes every call there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from baseboard import SamplingParams
from baseboard.backends.reference import backend as reference
from baseboard.contract import BackendHooks
from baseboard.discovery.hookcheck import hook_names
from baseboard.llm import LLM
from baseboard.runtime.loader import wrap_model
from end_to_end.tracing_instrument import Trace, tracer
from families import build

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": [3 + 7 * number + at for at in range(6)]} for number in range(4)]
ENTRY_POINTS = "[baseboard.instruments]\ntracer = end_to_end.tracing_instrument:tracer\n"
METADATA = "Metadata-Version: 2.1\nName: tracer-for-tests\nVersion: 1.0\n"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trace:
    """The tracer is installed, as a distribution with an entry point, and the environment asks for it."""
    info = tmp_path / "tracer_for_tests-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("BASEBOARD_INSTRUMENTS", "tracer")
    return tracer.begin()


def open_tight(family: str = "llama", **settings: Any) -> LLM:
    """4 prompts with 6 tokens and 10 outputs take 16 blocks of 4; there are 9, and a host pool."""
    tight = {"block_size": 4, "num_kv_blocks": 9, "num_host_blocks": 16, "preemption": "swap", "max_model_len": 32}
    small = {"max_num_seqs": 8, "max_num_batched_tokens": 24}
    return LLM(wrap_model(build(family)), backend="reference", dtype="float32", **(tight | small | settings))


def test_it_sees_every_swap(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[list[int]]] = []
    swap_blocks = reference.swap_blocks

    def counted(source: Any, destination: Any, pairs: Any) -> Any:
        made.append(pairs.tolist())
        return swap_blocks(source, destination, pairs)

    monkeypatch.setattr(reference, "swap_blocks", counted)
    with open_tight() as llm:
        trial = len(trace.swaps)
        outputs = llm.generate(PROMPTS, GREEDY)
        stats = llm.stats()
    assert stats["num_swaps_out"] > 0
    assert [swap.pairs for swap in trace.swaps] == made
    assert all(swap.transfer.done() for swap in trace.swaps)

    device, host = trace.swaps[0].source, trace.swaps[0].destination
    assert {(swap.source is device, swap.destination is host) for swap in trace.swaps} == {(True, True), (False, False)}
    swapped = trace.swaps[trial:]
    out = [pair for swap in swapped if swap.source is device for pair in swap.pairs]
    back = [pair for swap in swapped if swap.source is host for pair in swap.pairs]
    assert len(out) >= stats["num_swaps_out"]
    # What came back lay where it had been put.
    assert {source for source, _ in back} <= {destination for _, destination in out}

    monkeypatch.delenv("BASEBOARD_INSTRUMENTS")
    before = len(trace.hooks)
    with open_tight(num_kv_blocks=64) as roomy:
        assert [output.outputs for output in roomy.generate(PROMPTS, GREEDY)] == [output.outputs for output in outputs]
    assert len(trace.hooks) == before  # nobody asked for it this time


@pytest.mark.parametrize(("family", "num_groups"), [("llama", 1), ("gemma2", 2)])
def test_it_sees_every_kernel_and_every_step(trace: Trace, family: str, num_groups: int) -> None:
    with open_tight(family) as llm:
        layers = [layer.attention for layer in llm.built.model.layers]
        in_groups = [layers[index] for group in llm.built.model.groups(4) for index in group.layers]
        assert trace.attentions == in_groups * 2  # to measure memory, and for good
        measured = len(trace.step_tokens)
        assert measured == num_groups
        assert set(trace.step_tokens) == {24}

        llm.generate(PROMPTS, GREEDY)
        assert sum(trace.step_tokens[measured:]) == num_groups * llm.stats()["num_scheduled_tokens"]
        assert len(trace.attentions) == 6  # none is made while it runs


def test_the_core_calls_every_hook(trace: Trace) -> None:
    """A hook that nobody calls is a promise that nobody keeps: it has to go, or the core has to call it."""
    with open_tight() as llm:
        llm.generate(PROMPTS, GREEDY)  # swaps
        llm.generate(PROMPTS[0], GREEDY.replace(n=3))  # samples write into blocks that they share
        llm.reset_prefix_cache()
        llm.generate(PROMPTS[0], GREEDY)  # what was cached is wiped
    called = Counter(trace.hooks)
    assert sorted(called) == sorted(hook_names(BackendHooks))
    assert called["capabilities"] == called["close"] == 1
    assert called["allocate_kv_cache"] == 2  # the null block to measure with, and the pool
    assert called["allocate_host_kv_cache"] == 1
