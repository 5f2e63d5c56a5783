"""Captured decode steps: replays have the numbers of their own step, and a plugin that forgets one is found out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from baseboard.contract import BackendFault, LayerKind, Unsupported
from baseboard_ascend_npu import graphs
from baseboard_ascend_npu.backend import AscendBackend
from baseboard_ascend_npu.graphs import NpuGraph
from baseboard_ascend_npu.metadata import StepMetadata
from baseboard_ascend_standin.library import StandIn
from plugins.ascend_npu.emulated.npu_world import NpuWorld, Row, make_world
from plugins.ascend_npu.emulated.test_engine import GREEDY, expected, on_npu, open_llm, prompts, tokens_of

Patch = pytest.MonkeyPatch
#: Of one shape, with other lengths, blocks and slots.
ROWS = [[Row(1, 9), Row(1, 33), Row(1, 16)], [Row(1, 40), Row(1, 2), Row(1, 17)]]
KINDS: list[dict[str, Any]] = [
    {},
    {"sliding_window": 7},
    {"sinks": (0.5, 1.0, 2.0, -1.0), "sliding_window": 9},
    {"head_size": 64},
    {"head_size": 64, "heads": (4, 4)},
]


def worlds(**options: Any) -> list[NpuWorld]:
    return [make_world(rows, num_decodes=3, seed=seed, **options) for seed, rows in enumerate(ROWS)]


class Replays:
    """One captured step, and replays of it for several worlds whose caches are one."""

    def __init__(self, backend: AscendBackend, made: list[NpuWorld]) -> None:
        self.backend, self.made = backend, made
        first = made[0]
        self.kernel: Any = backend.attention_kernel(first.spec, first.kv)
        self.caches = [each.poisoned_cache(backend, 0.0) for each in made]
        self.cache = backend.allocate_kv_cache(first.kv, max(cache.num_blocks for cache in self.caches))
        new = [(torch.cat(each.query), each._new(each.key), each._new(each.value)) for each in made]
        self.new = [[part.to("npu") for part in parts] for parts in new]
        self.inputs = [part.clone() for part in self.new[0]]
        self.out = torch.zeros_like(self.inputs[0][:, :, : first.kv.head_size_v])
        kinds = [LayerKind(first.spec, first.kv)]
        runner = backend.graph_runner(kinds)
        assert runner is not None
        self.metadata = [self.metadata_of(0)]
        self.graph = runner.capture(self.metadata, self.compute)

    def metadata_of(self, index: int) -> Any:
        """With as many columns in the table, whatever the lengths are."""
        batch = self.made[index].batch()
        tables = np.zeros((3, 8), np.int32)
        tables[:, : batch.block_tables.shape[1]] = batch.block_tables
        object.__setattr__(batch, "block_tables", tables)
        return self.backend.build_attention_metadata(batch, self.cache)

    def compute(self) -> None:
        query, key, value = self.inputs
        self.kernel.write(key, value, self.cache.layer(0), self.metadata[0])
        self.out.copy_(self.kernel.attend(query, self.cache.layer(0), self.metadata[0]))

    def replay(self, index: int) -> torch.Tensor:
        """Enqueued only: what it gives is there when the device has come to it."""
        for plane, old in zip(self.cache.planes, self.caches[index].planes, strict=True):
            plane.zero_()
            plane[: len(old)].copy_(old)
        for into, new in zip(self.inputs, self.new[index], strict=True):
            into.copy_(new)
        self.graph.replay([self.metadata_of(index)])
        return self.out.clone()

    def check(self) -> None:
        """Three replays without a wait in between, then all results."""
        results = [(index, self.replay(index)) for index in (0, 1, 0)]
        for index, result in results:
            self.made[index].check(result.cpu())


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_replay_has_the_numbers_of_its_own_step(
    backend: AscendBackend, standin: StandIn, options: dict[str, Any], late: bool
) -> None:
    replays = Replays(backend, worlds(**options))
    with late_if(standin, late):
        replays.check()


@contextmanager
def late_if(standin: StandIn, late: bool) -> Iterator[None]:
    if not late:
        yield
        return
    with standin.late():
        yield


def keeps_lengths(patch: Patch) -> None:
    first: list[Any] = []

    def captured(step: StepMetadata) -> Any:
        first.append(step)
        return {"actual_seq_lengths_kv": [9, 33, 16], "context_lens": first[0].decode_lengths}

    patch.setattr(graphs, "_lengths", captured)


def keeps_tables(patch: Patch) -> None:
    patch.setattr(StepMetadata, "take", lambda self, other: self.slots.copy_(other.slots))


def keeps_slots(patch: Patch) -> None:
    patch.setattr(StepMetadata, "take", lambda self, other: self.tables.copy_(other.tables))


class _NoEvent:
    def synchronize(self) -> None:
        """Forgets."""

    def record(self) -> None:
        """Forgets."""


def forgets_to_wait(patch: Patch) -> None:
    made = NpuGraph.__init__

    def forgetful(self: Any, *args: Any) -> None:
        made(self, *args)
        self._replayed = _NoEvent()

    patch.setattr(NpuGraph, "__init__", forgetful)


@pytest.mark.parametrize("options", [{}, {"head_size": 64}], ids=str)
@pytest.mark.parametrize("forgets", [keeps_lengths, keeps_tables, keeps_slots, forgets_to_wait])
def test_a_plugin_that_forgets_gives_wrong_results(
    backend: AscendBackend,
    standin: StandIn,
    monkeypatch: Patch,
    forgets: Callable[[Patch], None],
    options: dict[str, Any],
) -> None:
    forgets(monkeypatch)
    replays = Replays(backend, worlds(**options))
    with standin.late(), pytest.raises(AssertionError):
        replays.check()


def test_a_replay_without_an_update_hangs_and_that_is_a_fault(
    backend: AscendBackend, standin: StandIn, monkeypatch: Patch
) -> None:
    """The captured operators wait, on the device, for their lengths."""
    replays = Replays(backend, worlds())
    monkeypatch.setattr(torch.npu.NPUGraph, "update", lambda self, cpu_update_input: None)
    try:
        with pytest.raises(BackendFault, match="CANN error 507046"):
            replays.replay(1)
    finally:
        standin.find()


def test_shapes_that_are_not_the_captured_ones(backend: AscendBackend) -> None:
    replays = Replays(backend, worlds())
    other = make_world(ROWS[0][:2], num_decodes=2)
    step = backend.build_attention_metadata(other.batch(), replays.cache)
    with pytest.raises(
        ValueError, match=r"shapes \(\(2, 3\), \(2,\)\) cannot be replayed as one of \(\(3, 8\), \(3,\)\)"
    ):
        replays.graph.replay([step])


def test_padding_that_shares_a_slot_is_not_captured(backend: AscendBackend) -> None:
    made = make_world([Row(1, 9), *[Row(1, 1, padding=True)] * 2], num_decodes=3)
    cache = made.poisoned_cache(backend, 0.0)
    runner = backend.graph_runner([LayerKind(made.spec, made.kv)])
    assert runner is not None
    with pytest.raises(Unsupported, match="tokens share a slot"):
        runner.capture([backend.build_attention_metadata(made.batch(), cache)], lambda: None)


@pytest.mark.parametrize("options", [{"head_size": 96, "sliding_window": 5}, {"head_size": 320}], ids=str)
def test_layers_that_are_gathered_are_not_captured(backend: AscendBackend, options: dict[str, Any]) -> None:
    gathered, fused = make_world(ROWS[0], **options), make_world(ROWS[0])
    kinds = [LayerKind(fused.spec, fused.kv), LayerKind(gathered.spec, gathered.kv)]
    assert backend.graph_runner(kinds) is None
    assert backend.graph_runner(kinds[:1]) is not None


def test_an_older_torch_npu_that_cannot_exchange_lengths(backend: AscendBackend, monkeypatch: Patch) -> None:
    class Graph:
        def __init__(self, npu_graph: Any, pool: Any = None) -> None: ...

    monkeypatch.setattr(torch.npu, "graph", Graph)
    made = make_world(ROWS[0])
    assert backend.graph_runner([LayerKind(made.spec, made.kv)]) is None


def test_what_captured_steps_keep_is_in_the_account() -> None:
    with open_llm(on_npu("llama"), "ascend_npu") as llm:
        items = dict(llm.built.memory.lines())
    with open_llm(on_npu("llama"), "ascend_npu", enable_graphs=False) as llm:
        assert "recorded decode steps" not in dict(llm.built.memory.lines())
    assert items["recorded decode steps"] >= 8 * 128 * 4  # the logits of 8 sequences at least


def test_a_model_that_asks_the_device_in_the_middle_of_a_step(backend: AscendBackend) -> None:
    """It cannot be captured; it runs kernel by kernel, and that is said."""
    model = on_npu("llama")
    layer = model.model.layers[1].mlp
    straight = layer.forward

    def curious(x: torch.Tensor) -> torch.Tensor:
        return straight(x) if x.abs().max().item() >= 0 else x

    layer.forward = curious
    with open_llm(model, "ascend_npu") as llm:
        assert llm.built.graphs is None
        assert tokens_of(llm.generate(prompts("llama", 5), GREEDY)) == expected("llama", "bfloat16", 5)
