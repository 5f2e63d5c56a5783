"""Decode steps as CUDA graphs.

Kernels read lengths, tables and slots on the device, so a replay brings new numbers to where the recorded ones were, by
one copy a group of layers. Only a launch's grid is baked in: it is that of the longest sequences that the tables have
room for, whose keys are split among more programs than shorter ones need. Programs without keys end at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import torch

from baseboard.contract import BackendFault, Graph, Unsupported
from baseboard_cuda.faults import device_faults
from baseboard_cuda.metadata import CudaMetadata


class CudaStepGraph:
    """One recorded step; owns the arrays of the metadata that it was recorded with."""

    def __init__(self, graph: torch.cuda.CUDAGraph, metadata: Sequence[CudaMetadata]) -> None:
        self._graph: Final = graph
        self._metadata: Final = tuple(metadata)

    def replay(self, metadata: Sequence[object]) -> None:
        """Enqueue it with the numbers of ``metadata``: behind the replay before it, so nothing waits on the host.

        Raises ``ValueError`` for metadata of other shapes than the recorded ones, before anything is enqueued.
        """
        steps = cast("Sequence[CudaMetadata]", metadata)
        for own, new in zip(self._metadata, steps, strict=True):
            own.check_like(new)
        with device_faults("replaying a graph"), torch.inference_mode():  # as what it writes to was made
            for own, new in zip(self._metadata, steps, strict=True):
                own.packed.copy_(new.packed, non_blocking=True)
            self._graph.replay()


class CudaGraphRunner:
    """Records steps of one model, all in one pool of memory: they run one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._device: Final = device
        self._pool: Final[Any] = torch.cuda.graph_pool_handle()

    def capture(self, metadata: Sequence[object], compute: Callable[[], None]) -> Graph:
        """Run ``compute`` once, so that everything which is made on first use is there; then record it.

        Exhausted memory is ``torch.OutOfMemoryError``, as everywhere; nothing is kept then.
        """
        steps = cast("Sequence[CudaMetadata]", metadata)
        for step in steps:
            step.reach_all()
        with device_faults("computing a step to record"):
            compute()
            torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                compute()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, BackendFault) as error:
            # CUDA tells what a capture forbids as it tells that a device is lost. A lost one cannot be waited for.
            with device_faults("recording a graph"):
                torch.cuda.synchronize(self._device)
            raise Unsupported([f"CUDA cannot record this model's decode step: {_first_line(error)}"]) from error
        return CudaStepGraph(graph, steps)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
