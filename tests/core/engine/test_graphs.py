"""Decode steps that are replayed: the same tokens, from few recordings."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from baseboard import SamplingParams
from baseboard.discovery import open_backend
from baseboard.engine import build as building
from baseboard.llm import LLM
from baseboard.runtime.graph_batch import graph_sizes
from baseboard.runtime.graph_recording import Recording
from baseboard.runtime.loader import wrap_model
from baseboard.runtime.sizing import MemoryProfile, SizingLimits, given_pool, size_pool
from baseboard.runtime.step_batch import BatchLimits
from core.engine.replaying import Replaying
from core.engine.watching import Watching
from families import build

OpenLLM = Callable[..., LLM]
PROMPTS = [{"prompt_token_ids": [3 + 7 * number + at for at in range(3 + 2 * number)]} for number in range(4)]
WISHES = [
    SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, logprobs=3),
    SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, prompt_logprobs=1),
    SamplingParams(temperature=1.0, seed=7, max_tokens=8, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=7, ignore_eos=True, n=2),
]


@pytest.fixture
def replaying(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Replaying]:
    """Lets what is opened from now on replay."""

    def install(**options: Any) -> Replaying:
        device = Replaying(**options)
        monkeypatch.setattr(building, "open_backend", partial(open_backend, instruments=[device]))
        return device

    return install


@pytest.fixture
def without_gc() -> Iterator[None]:
    """What is in a reference cycle stays."""
    gc.disable()
    yield
    gc.enable()


def tokens(llm: LLM) -> list[list[list[int]]]:
    return [[sample.token_ids for sample in output.outputs] for output in llm.generate(PROMPTS, WISHES)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 4},
        {"num_kv_blocks": 9, "max_model_len": 24, "preemption": "recompute"},
        {"num_kv_blocks": 9, "max_model_len": 24, "preemption": "swap", "num_host_blocks": 16},
        {"enable_prefix_caching": False},
    ],
    ids=str,
)
def test_replayed_steps_give_the_same_tokens(
    open_llm: OpenLLM, replaying: Callable[..., Replaying], settings: dict[str, Any]
) -> None:
    told = open_llm(**settings)
    truth = tokens(told)
    assert told.stats()["num_replayed_steps"] == 0
    replaying()
    replayed = open_llm(**settings)
    assert tokens(replayed) == truth
    assert tokens(replayed) == truth
    assert 0 < replayed.stats()["num_replayed_steps"] < replayed.stats()["num_steps"]  # not those with prompts


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_layers_of_several_kinds(replaying: Callable[..., Replaying], family: str) -> None:
    small: dict[str, Any] = {"block_size": 4, "num_kv_blocks": 32, "max_num_seqs": 8, "max_num_batched_tokens": 32}
    with LLM(wrap_model(build(family)), backend="reference", dtype="float32", **small) as llm:
        truth = tokens(llm)
    device = replaying()
    with LLM(wrap_model(build(family)), backend="reference", dtype="float32", **small) as llm:
        assert tokens(llm) == truth
        assert len(device.runners[-1].layers) == len(llm.built.model.groups(4))


def test_each_size_is_recorded_once_and_the_largest_to_measure(
    open_llm: OpenLLM, replaying: Callable[..., Replaying]
) -> None:
    device = replaying()
    llm = open_llm(max_num_seqs=6)
    trial, real = device.runners
    assert trial.recorded == [6]
    assert real.recorded == [6, 4, 2, 1]
    tokens(llm)
    assert real.recorded == [6, 4, 2, 1]
    assert llm.built.graphs is not None
    assert llm.built.graphs.sizes == (1, 2, 4, 6)


def test_no_more_sequences_than_there_are_blocks(open_llm: OpenLLM, replaying: Callable[..., Replaying]) -> None:
    device = replaying()
    open_llm(max_num_seqs=32, num_kv_blocks=5, max_model_len=16)
    assert device.runners[-1].recorded == [5, 4, 2, 1]


def test_who_wants_none_gets_none(open_llm: OpenLLM, replaying: Callable[..., Replaying]) -> None:
    device = replaying()
    llm = open_llm(enable_graphs=False)
    tokens(llm)
    assert device.runners == []
    assert llm.stats()["num_replayed_steps"] == 0


def test_a_model_that_cannot_be_recorded_is_told_kernel_by_kernel(
    open_llm: OpenLLM, replaying: Callable[..., Replaying]
) -> None:
    truth = tokens(open_llm())
    replaying(refusal="it asks the device in the middle of a step")
    llm = open_llm()
    assert tokens(llm) == truth
    assert llm.built.graphs is None


@pytest.mark.parametrize("room", [0, 1, 2], ids=["none", "only for the trial", "for some sizes"])
def test_without_memory_for_recordings_steps_are_told_kernel_by_kernel(
    open_llm: OpenLLM, replaying: Callable[..., Replaying], without_gc: None, room: int
) -> None:
    """Each runner has room for so many: the trial takes 1, sizes 4, 2 and 1 take 3."""
    truth = tokens(open_llm())
    device = replaying(room=room)
    heard = Watching()
    llm = open_llm(progress=heard)
    assert [runner.kept() for runner in device.runners] == [[]] * len(device.runners)
    assert tokens(llm) == truth
    assert llm.built.graphs is None
    assert llm.built.memory.graphs == 0
    (told,) = [line for line in heard.stages if "not recorded" in line]
    assert "memory does not suffice to record them (no 3 GiB left); lower max_num_seqs or memory_fraction" in told
    assert ("recording decode steps" in heard.stages) == (room > 0)


def test_recordings_are_dropped_when_the_engine_is_closed(
    open_llm: OpenLLM, replaying: Callable[..., Replaying], without_gc: None
) -> None:
    device = replaying()
    llm = open_llm()
    assert [len(runner.kept()) for runner in device.runners] == [0, 3]
    llm.close()
    assert [runner.kept() for runner in device.runners] == [[], []]


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        ((64, 2048, 128), [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]),
        ((20, 2048, 16), [1, 2, 4, 8, 16, 20]),
        ((20, 10, 16), [1, 2, 4, 8, 10]),
        ((1, 2048, 16), [1]),
        ((8, 2048, 4), [1, 2, 4, 8]),
        ((5, 2048, 1), [1, 2, 3, 4, 5]),
        ((1000, 2048, 16), [1, 2, 4, *range(8, 257, 8)]),
    ],
)
def test_sizes(limits: tuple[int, int, int], sizes: list[int]) -> None:
    max_seqs, max_tokens, block_size = limits
    found = graph_sizes(BatchLimits(max_tokens, max_seqs, 8, block_size))
    assert list(found) == sizes
    gaps = np.diff([0, *found])
    assert gaps.max() <= max(4, block_size)


def test_what_recordings_keep_is_taken_off_the_pool() -> None:
    limits = SizingLimits(memory_fraction=0.5, block_nbytes=10, block_size=4, max_model_len=9, max_num_seqs=100)
    without = MemoryProfile(total=2000, free=1500, weights=100, held=200, activation_peak=300)
    recorded = MemoryProfile(total=2000, free=1500, weights=100, held=200, activation_peak=300, graphs=200)
    assert size_pool(without, limits).num_blocks == 49
    report = size_pool(recorded, limits)
    assert report.num_blocks == 29
    assert sum(nbytes for _, nbytes in report.lines()) == report.budget == 1000
    assert ("recorded decode steps", 200) in report.lines()
    named = given_pool(recorded, limits, 20)
    assert sum(nbytes for _, nbytes in named.lines()) == named.budget == 1000


def test_what_recordings_keep_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the device has reserved before and after, caches not counted."""
    device = Replaying()
    with open_backend("reference", instruments=[device]) as backend:
        model = wrap_model(build("llama"))
        recording = Recording(backend.hook, model, model.groups(4), BatchLimits(8, 8, 4, 4))
        hook = backend.hook
        reserved = iter([1000, 1700])
        snapshot = hook.memory_snapshot()
        monkeypatch.setattr(
            hook, "memory_snapshot", lambda: type(snapshot)(10**9, 10**9, 0, 0, next(reserved)), raising=False
        )
        assert recording.measure() == 700
        assert device.runners[0].recorded == [8]
