"""The stand-in's own streams, events, copies and captures, through torch_npu."""

from __future__ import annotations

import pytest
import torch

from baseboard_ascend_standin.library import StandIn


def pinned(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32).pin_memory()


def test_work_runs_at_once_where_nothing_is_late(standin: StandIn) -> None:
    source, target = pinned(1, 2), torch.zeros(2, dtype=torch.int32, device="npu")
    target.copy_(source, non_blocking=True)
    source.fill_(7)
    assert target.tolist() == [1, 2]
    assert standin.pending() == 0


def test_a_late_copy_reads_its_source_when_it_runs(standin: StandIn) -> None:
    source, target = pinned(1, 2), torch.zeros(2, dtype=torch.int32, device="npu")
    with standin.late():
        target.copy_(source, non_blocking=True)
        source.fill_(7)
        assert target.tolist() == [7, 7]


def test_a_late_copy_of_pageable_memory_is_done_on_return(standin: StandIn) -> None:
    source, target = torch.tensor([1, 2], dtype=torch.int32), torch.zeros(2, dtype=torch.int32, device="npu")
    with standin.late():
        target.copy_(source, non_blocking=True)
        source.fill_(7)
        assert target.tolist() == [1, 2]


def test_operators_see_what_is_before_them_on_their_stream_and_nothing_else(standin: StandIn) -> None:
    source, target = pinned(1, 2), torch.zeros(2, dtype=torch.int32, device="npu")
    side = torch.npu.Stream()
    with standin.late():
        with torch.npu.stream(side):
            target.copy_(source, non_blocking=True)
            after = target + 10
        unordered = (target + 10).tolist()
        torch.npu.current_stream().wait_stream(side)
        ordered = (target + 10).tolist()
    assert unordered == [10, 10]
    assert ordered == [11, 12]
    assert after.tolist() == [11, 12]


def test_events_are_done_when_their_record_has_run(standin: StandIn) -> None:
    source, target = pinned(1), torch.zeros(1, dtype=torch.int32, device="npu")
    event = torch.npu.Event()
    with standin.late():
        target.copy_(source, non_blocking=True)
        event.record()
        asked = [event.query() for _ in range(4)]
        assert asked == [False, False, True, True]  # the copy, then the record; each question lets one piece run
        event.synchronize()
    assert target.tolist() == [1]


def test_results_whose_size_depends_on_numbers_wait(standin: StandIn) -> None:
    numbers = torch.arange(6, device="npu")
    with standin.late():
        assert numbers[(numbers + 1) % 2 == 0].tolist() == [1, 3, 5]
        assert torch.equal(numbers, numbers + 0)


def test_what_an_operator_raises_later_is_raised_at_the_next_call(standin: StandIn) -> None:
    table = torch.zeros(2, 4, device="npu")
    with standin.late():
        table.index_select(0, torch.tensor([5]).to("npu"))
        torch.npu.synchronize()
        with pytest.raises(IndexError):
            table.add_(1)


def test_a_captured_graph_runs_again_with_new_numbers() -> None:
    source, graph = torch.zeros(2, device="npu"), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = (source + 1) * 2
    for start in (1.0, 5.0):
        source.fill_(start)
        graph.replay()
        assert result.tolist() == [2 * start + 2] * 2


@pytest.mark.usefixtures("nothing_kept")
def test_memory_is_counted_against_the_capacity(standin: StandIn) -> None:
    used = standin.device_used()
    standin.set_capacity(used + (64 << 20))
    try:
        free, total = torch.npu.mem_get_info()
        assert (free, total) == (64 << 20, used + (64 << 20))
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(80 << 20, dtype=torch.uint8, device="npu")
    finally:
        standin.set_capacity(4 << 30)
