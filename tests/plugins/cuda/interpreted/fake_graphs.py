"""A stand-in for torch's CUDA graphs: it keeps what is told while a graph is open, and does it again as it was.

Kept are the launches of interpreted kernels, which do not run meanwhile, and torch's own operators, which do, since
the code that tells them wants tensors back: a replay writes into the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from baseboard_cuda import attention, operators

LOST = "CUDA error: unspecified launch failure"


@dataclass
class FakeGraph:
    launches: list[Callable[[], None]] = field(default_factory=list)

    def replay(self) -> None:
        for launch in self.launches:
            launch()


class FakeGraphs:
    """In the place of ``torch.cuda``."""

    def __init__(self) -> None:
        self.open: FakeGraph | None = None
        self.kernels: list[str] = []
        self.pools: list[object] = []
        self.lost = False
        self._on_grid = attention.on_grid

    def install(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
        monkeypatch.setattr(torch.cuda, "graph", self.graph)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "a pool")
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        for module in (attention, operators):
            monkeypatch.setattr(module, "on_grid", self.on_grid)

    @contextmanager
    def graph(self, graph: FakeGraph, pool: object) -> Iterator[None]:
        self.open = graph
        self.pools.append(pool)
        try:
            with _KeptOperators(graph):
                yield
        finally:
            self.open = None

    def synchronize(self, device: torch.device) -> None:
        if self.open is not None:
            raise torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing")
        if self.lost:
            raise torch.AcceleratorError(LOST)

    def on_grid(self, kernel: Any, *how: Any) -> Callable[..., None]:
        launch = self._on_grid(kernel, *how)

        def enqueue(*args: Any, **kwargs: Any) -> None:
            if self.open is None:
                launch(*args, **kwargs)
            else:
                self.kernels.append(kernel.fn.__name__)
                self.open.launches.append(lambda: launch(*args, **kwargs))

        return enqueue


class _KeptOperators(TorchDispatchMode):
    def __init__(self, graph: FakeGraph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        old = _tensors(made)

        def again() -> None:
            for place, new in zip(old, _tensors(func(*args, **(kwargs or {}))), strict=True):
                if new.data_ptr() != place.data_ptr():  # the same: a view, or written in place
                    place.copy_(new)

        self._graph.launches.append(again)
        return made


def _tensors(made: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
