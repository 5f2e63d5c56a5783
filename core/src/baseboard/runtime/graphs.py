"""Decode steps by replay: recorded once for each of a few sizes, in tensors that never move."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import torch

from baseboard.contract import BackendHooks, Graph, GraphRunner, KVCache, LayerKind
from baseboard.runtime.graph_batch import DecodeBatch, DecodePadder, graph_sizes
from baseboard.runtime.layers import LayerGroup
from baseboard.runtime.model_loaded import LoadedModel
from baseboard.runtime.step_batch import BatchLimits

if TYPE_CHECKING:
    from torch import Tensor


def layer_kinds(model: LoadedModel, groups: Sequence[LayerGroup]) -> tuple[LayerKind, ...]:
    """Every kind of layer of ``model`` once."""
    kinds = [LayerKind(model.layers[index].attention, group.spec) for group in groups for index in group.layers]
    return tuple(kind for at, kind in enumerate(kinds) if kind not in kinds[:at])


@dataclass(frozen=True, slots=True)
class GraphParts:
    """What recorded steps work with: ``model`` is bound to ``caches``, one a group."""

    hook: BackendHooks
    runner: GraphRunner
    model: LoadedModel
    caches: Sequence[KVCache]


class DecodeGraphs:
    """Recorded decode steps of one model. Owner: the executor."""

    def __init__(self, parts: GraphParts, limits: BatchLimits) -> None:
        """``limits`` are those of the steps to record; no more sequences than the caches have blocks."""
        self.sizes: Final = graph_sizes(limits)
        self.num_replays = 0
        self._parts: Final = parts
        self._graphs: Final[dict[int, Graph]] = {}
        most, device = self.sizes[-1], parts.hook.torch_device()
        self._padder: Final = DecodePadder(parts.hook, replace(limits, max_seqs=most, max_tokens=most))
        self._token_ids: Final = torch.zeros(most, dtype=torch.int64, device=device)
        self._positions: Final = torch.zeros(most, dtype=torch.int64, device=device)
        self._rows: Final = torch.arange(most, device=device)
        self._logits: Final = torch.zeros(most, parts.model.vocab_size, device=device)

    def capture(self, sizes: Iterable[int]) -> None:
        """Record steps of these sizes. Their tokens are kept in the first blocks: before any request owns one.

        Raises ``Unsupported`` when the model's work cannot be recorded. After whatever it raises, no recording is kept.
        """
        try:
            for size in sorted(sizes, reverse=True):  # the largest first: the others find room in what it took
                self._graphs[size] = self._captured(size)
        except BaseException:
            self.release()  # each refers to us by what it computes: left to the collector, its memory would be kept
            raise

    def release(self) -> None:
        """Drop what is recorded, so that its memory and the caches can be freed."""
        self._graphs.clear()

    def takes(self, step: DecodeBatch, num_rows: int) -> bool:
        """Whether the step can be replayed: one token a sequence, and the logits of each are wanted."""
        batch = step.batch
        return batch.max_query_len == 1 and num_rows == batch.num_seqs <= self.sizes[-1]

    def run(self, step: DecodeBatch) -> Tensor:
        """Logits ``[S, V]`` in float32 of a step that is taken. They are valid until the next one."""
        count = step.batch.num_seqs
        size = next(size for size in self.sizes if size >= count)
        padded = self._padder.pad(step, size)
        self._token_ids[:size].copy_(torch.from_numpy(padded.token_ids), non_blocking=True)
        self._positions[:size].copy_(torch.from_numpy(padded.batch.positions), non_blocking=True)
        self._graphs[size].replay(metadata=self._metadata(padded))
        self.num_replays += 1
        return self._logits[:count]

    def _captured(self, size: int) -> Graph:
        metadata = self._metadata(self._padder.nothing(size))
        return self._parts.runner.capture(metadata=metadata, compute=self._compute(size, metadata))

    def _compute(self, size: int, metadata: Sequence[object]) -> Callable[[], None]:
        model = self._parts.model

        def compute() -> None:
            with model.bridge.step(metadata):
                logits = model.forward(self._token_ids[:size], self._positions[:size], self._rows[:size])
            self._logits[:size].copy_(logits)

        return compute

    def _metadata(self, step: DecodeBatch) -> list[object]:
        build = self._parts.hook.build_attention_metadata
        return [build(batch=step.batch, cache=cache) for cache in self._parts.caches]
