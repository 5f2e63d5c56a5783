"""Decode steps as captured models: what torch_npu calls graphs.

The device is told the attention operators' lengths when an operator is told, so they are baked into what is captured.
torch_npu remembers these operators (``auto_dispatch_capture``) and exchanges them before a replay; each of them waits,
on the device, until that has been done.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import torch

from baseboard.contract import Graph, Unsupported
from baseboard_ascend_npu.device_module import npu
from baseboard_ascend_npu.faults import device_faults
from baseboard_ascend_npu.metadata import StepMetadata


def can_capture() -> bool:
    """Whether this torch_npu can exchange lengths in what it has captured."""
    return hasattr(npu, "NPUGraph") and "auto_dispatch_capture" in inspect.signature(npu.graph.__init__).parameters


class NpuGraph:
    """One captured step; owns the tables and slots of the metadata that it was captured with."""

    def __init__(self, graph: Any, metadata: Sequence[StepMetadata]) -> None:
        self._graph: Final = graph
        self._metadata: Final = tuple(metadata)
        self._replayed: Final[Any] = npu.Event()

    def replay(self, metadata: Sequence[object]) -> None:
        """Enqueue it with the numbers of ``metadata``, a :class:`StepMetadata` for each group of layers."""
        steps = cast("Sequence[StepMetadata]", metadata)
        with device_faults(), torch.inference_mode():  # as what it writes to was made
            for own, new in zip(self._metadata, steps, strict=True):
                own.take(new)
            # The replay before this one must be over: it calls the operators that are exchanged now.
            self._replayed.synchronize()
            self._graph.update(cpu_update_input=[_lengths(steps[0])])
            self._graph.replay()
            self._replayed.record()


def _lengths(step: StepMetadata) -> dict[str, Any]:
    """By the names that the operators have for them. All groups of layers have the same."""
    return {
        "actual_seq_lengths_kv": step.lengths,
        "actual_seq_kvlen": step.lengths,
        "context_lens": step.decode_lengths,
    }


class NpuGraphRunner:
    """Captures steps of one model, all in one pool of memory: they run one after the other."""

    def __init__(self) -> None:
        self._pool: Final[Any] = npu.graph_pool_handle()

    def capture(self, metadata: Sequence[object], compute: Callable[[], None]) -> Graph:
        """Run ``compute`` once, so that everything which is made on first use is there; then capture it."""
        steps = cast("Sequence[StepMetadata]", metadata)
        if any(step.stored is not None for step in steps):
            raise Unsupported(["a step in which tokens share a slot cannot be captured: its shapes depend on numbers"])
        with device_faults():
            compute()
            npu.synchronize()
            graph = npu.NPUGraph()
            try:
                with npu.graph(graph, pool=self._pool, auto_dispatch_capture=True):
                    compute()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # torch_npu has no other type for what a capture forbids
                npu.synchronize()  # says whether it was the device
                raise Unsupported(
                    [f"torch_npu cannot capture this model's decode step: {_first_line(error)}"]
                ) from error
        return NpuGraph(graph, steps)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
