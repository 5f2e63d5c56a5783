"""Recorded steps over a stand-in for torch's CUDA graphs.

The kernels are the real ones, interpreted: a number that is baked in where it must not be gives wrong attention. That
the driver can record these launches is for ``make gpu-check``.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from baseboard.contract import BackendFault, LayerKind, Unsupported
from baseboard_cuda import backend as hooks
from baseboard_cuda.check.gpu import check_graph
from baseboard_cuda.check.layer import Shape
from baseboard_cuda.graphs import CudaGraphRunner
from core.backends.world import Row, World, make_world
from plugins.cuda.interpreted.fake_graphs import LOST, FakeGraphs


@pytest.fixture
def graphs(monkeypatch) -> FakeGraphs:
    fake = FakeGraphs()
    fake.install(monkeypatch)
    return fake


@pytest.fixture
def runner(graphs) -> CudaGraphRunner:
    return CudaGraphRunner(torch.device("cpu"))


def world_of(*lengths: int, seed: int = 0) -> World:
    return make_world([Row(1, length) for length in lengths], "float32", num_decodes=len(lengths), seed=seed)


def test_a_replay_attends_by_the_new_lengths_tables_and_slots(backend, graphs, runner) -> None:
    """Recorded with one key a sequence, as the core does; replayed with up to 150, which are split."""
    world = make_world([Row(1, 150), Row(1, 1)], heads=(4, 1), num_decodes=2)
    cache = world.poisoned_cache(backend, float("nan"))
    kernel = backend.attention_kernel(world.spec, world.kv)
    query, key, value = torch.cat(world.query), world._new(world.key), world._new(world.value)
    still = [torch.zeros_like(tensor) for tensor in (query, key, value)]
    out = torch.empty_like(query)
    nothing = world.batch()
    nothing.seq_lens[:] = 1
    nothing.block_tables[:] = 0
    nothing.slot_mapping[:] = torch.arange(2).numpy()
    recorded = backend.build_attention_metadata(nothing, cache)

    def compute() -> None:
        kernel.write(*still[1:], cache.layer(0), recorded)
        kernel.attend(still[0], cache.layer(0), recorded, out)

    graph = runner.capture([recorded], compute)
    assert graphs.kernels == ["write_kv", "paged_attention", "join_splits"]
    for mine, new in zip(still, (query, key, value), strict=True):
        mine.copy_(new)
    graph.replay([backend.build_attention_metadata(world.batch(), cache)])
    world.check(out)


def test_graphs_of_a_runner_share_a_pool(backend, graphs, runner) -> None:
    for _ in range(2):
        runner.capture([], lambda: None)
    assert graphs.pools == ["a pool", "a pool"]


def test_a_step_of_other_shapes_is_refused_before_anything_runs(backend, runner) -> None:
    two, three = world_of(20, 9), world_of(20, 9, 3)
    cache = three.poisoned_cache(backend, 0.0)
    graph = runner.capture([backend.build_attention_metadata(two.batch(), cache)], lambda: None)
    with pytest.raises(ValueError, match=r"a step of 3 tokens .* by a graph of 2 tokens .*: pad it"):
        graph.replay([backend.build_attention_metadata(three.batch(), cache)])


def test_a_step_that_waits_for_the_device_cannot_be_recorded(graphs, runner) -> None:
    with pytest.raises(Unsupported, match=r"CUDA cannot record .* operation not permitted"):
        runner.capture([], lambda: torch.cuda.synchronize(torch.device("cpu")))
    runner.capture([], lambda: None)  # and the next one can


def test_a_gpu_that_is_lost_while_it_records_is_a_fault(graphs, runner) -> None:
    def compute() -> None:
        if graphs.open is not None:
            graphs.lost = True
            raise torch.AcceleratorError(LOST)

    with pytest.raises(BackendFault, match=f"recording a graph: {LOST}"):
        runner.capture([], compute)


def test_no_memory_for_a_graph_is_no_fault(graphs, runner) -> None:
    def compute() -> None:
        if graphs.open is not None:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        runner.capture([], compute)


def test_the_check_for_a_gpu_passes_and_finds_lengths_that_are_baked_in(backend, graphs, runner, monkeypatch) -> None:
    monkeypatch.setattr(backend, "graph_runner", lambda layers: runner)
    shape = Shape(2, 70, 1, 4, 2)
    assert check_graph(backend, shape).passed
    monkeypatch.setattr("baseboard_cuda.graphs.CudaStepGraph.replay", lambda self, metadata: self._graph.replay())
    assert check_graph(backend, shape).passed is False


def test_the_interpreter_records_nothing(backend) -> None:
    world = world_of(4)
    assert backend.graph_runner([LayerKind(world.spec, world.kv)]) is None


@pytest.mark.parametrize(("engine", "kind"), [(None, CudaGraphRunner), (object(), type(None))])
def test_a_gpu_records_what_our_own_kernel_attends(backend, graphs, monkeypatch, engine, kind) -> None:
    world = world_of(4)
    gpu = SimpleNamespace(device=torch.device("cuda", 0), engines=())
    monkeypatch.setattr(backend, "_chip", gpu)
    monkeypatch.setattr(hooks.choice, "choose", lambda *args: SimpleNamespace(engine=engine))
    assert isinstance(backend.graph_runner([LayerKind(world.spec, world.kv)]), kind)
