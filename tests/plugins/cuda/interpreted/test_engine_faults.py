"""What the engine makes of a GPU that has too little memory, and of one that is lost: every kernel interpreted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from baseboard import LLM, SamplingParams
from baseboard.contract import BackendFault, MemoryShortage
from baseboard.runtime.loader import wrap_model
from baseboard_cuda import attention
from families import build

LOST = "CUDA error: unspecified launch failure"
PROMPTS = [{"prompt_token_ids": [5, 6, 7 + number]} for number in range(3)]
GREEDY = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
NUM_LAYERS = 3  # of the family


def open_tiny(**settings: Any) -> LLM:
    small = {"num_kv_blocks": 8, "max_model_len": 32, "max_num_seqs": 2, "max_num_batched_tokens": 16}
    return LLM(wrap_model(build("llama")), backend="cuda", dtype="float32", **(small | settings))


class Launches:
    """Launches of attention's kernels; they raise ``error`` while ``spoil`` says so of their number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        self.count = 0
        self.spoil: Callable[[int], bool] = lambda number: False
        self._error = error
        self._on_grid = attention.on_grid
        monkeypatch.setattr(attention, "on_grid", self._counted)

    def _counted(self, kernel: Any, *how: Any) -> Callable[..., None]:
        launch = self._on_grid(kernel, *how)

        def enqueue(*args: Any, **kwargs: Any) -> None:
            self.count += 1
            if self.spoil(self.count):
                raise self._error
            launch(*args, **kwargs)

        return enqueue


def test_a_gpu_without_room_for_the_largest_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was opened for it is closed: the next engine, with smaller steps, runs."""
    launches = Launches(monkeypatch, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB"))
    launches.spoil = lambda number: True
    said = (
        r"max_num_batched_tokens=16 tokens and max_num_seqs=2 .* [\d,]+ of [\d,]+ bytes were free "
        r"\(CUDA out of memory.*3 GiB\)\. Lower max_num_batched_tokens or max_num_seqs"
    )
    with pytest.raises(MemoryShortage, match=said):
        open_tiny()
    launches.spoil = lambda number: False
    with open_tiny(max_num_batched_tokens=8) as llm:
        outputs = llm.generate(PROMPTS, GREEDY)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 3, 3]


def test_a_gpu_that_is_lost_in_the_middle_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests run and one waits; the first step passes, the second one fails in its first layer."""
    launches = Launches(monkeypatch, torch.AcceleratorError(LOST))
    llm = open_tiny()
    first = launches.count + 2 * NUM_LAYERS  # a layer stores and attends: one launch each
    launches.spoil = lambda number: number > first
    outputs = llm.generate(PROMPTS, GREEDY)
    samples = [output.outputs[0] for output in outputs]
    assert [sample.finish_reason for sample in samples] == ["error"] * 3
    assert [len(sample.token_ids) for sample in samples] == [1, 1, 0]
    assert {sample.error for sample in samples} == {f"the GPU failed during storing keys and values: {LOST}"}
    stats = llm.stats()
    assert stats["num_running"] == stats["num_waiting"] == stats["num_swapped"] == 0
    with pytest.raises(BackendFault, match=r"the device is lost .*unspecified launch failure.*: build a new engine"):
        llm.generate(PROMPTS, GREEDY)
    llm.close()
