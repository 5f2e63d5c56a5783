"""Whether decode steps of a model can be recorded, what that takes, and recording them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from baseboard.contract import BackendHooks, GraphRunner, KVCache, Unsupported
from baseboard.runtime.binding import allocate, bind
from baseboard.runtime.graphs import DecodeGraphs, GraphParts, layer_kinds
from baseboard.runtime.layers import LayerGroup
from baseboard.runtime.model_loaded import LoadedModel
from baseboard.runtime.step_batch import BatchLimits


@dataclass(frozen=True, slots=True)
class Recording:
    """Of one model on one backend; ``limits`` are those of the largest step."""

    hook: BackendHooks
    model: LoadedModel
    groups: tuple[LayerGroup, ...]
    limits: BatchLimits

    def measure(self) -> int | None:
        """Bytes that recorded steps will keep; None where the backend records none of this model.

        The largest is recorded over caches of its own, and dropped: the others find room in what it takes. Leaves
        nothing bound. Raises ``Unsupported`` with the reason when the model's work cannot be recorded or memory does
        not suffice for it, and ``MemoryShortage`` when not even the caches fit.
        """
        runner = self._runner()
        if runner is None:
            return None
        hook = self.hook
        caches = allocate(hook, self.groups, -(-self.limits.max_seqs // self.limits.block_size))
        bind(hook, self.model, self.groups, caches)
        try:
            hook.synchronize()
            hook.empty_cache()
            before = hook.memory_snapshot().reserved
            with _no_room_is_unsupported():
                graphs = DecodeGraphs(GraphParts(hook, runner, self.model, caches), self.limits)
                graphs.capture(graphs.sizes[-1:])
            hook.synchronize()
            hook.empty_cache()
            kept = hook.memory_snapshot().reserved - before
            graphs.release()
        finally:
            self.model.bridge.release()
        return max(0, kept)

    def record(self, caches: Sequence[KVCache], num_blocks: int) -> DecodeGraphs:
        """Record steps of every size over ``caches``, to which the model is bound and in which nothing is kept yet.

        Raises ``Unsupported`` as :meth:`measure` does: others may have taken memory since. Nothing is kept then.
        """
        runner = self._runner()
        assert runner is not None, "measured before"
        # Each sequence owns a block at least, so no more of them can run.
        limits = replace(self.limits, max_seqs=min(self.limits.max_seqs, num_blocks))
        with _no_room_is_unsupported():
            graphs = DecodeGraphs(GraphParts(self.hook, runner, self.model, caches), limits)
            graphs.capture(graphs.sizes)
        return graphs

    def _runner(self) -> GraphRunner | None:
        return self.hook.graph_runner(layers=layer_kinds(self.model, self.groups))


@contextmanager
def _no_room_is_unsupported() -> Iterator[None]:
    """A model runs without recorded steps, too: their memory is no reason to refuse it."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        way_out = "lower max_num_seqs or memory_fraction to have them, or set enable_graphs=False"
        raise Unsupported([f"memory does not suffice to record them ({error}); {way_out}"]) from error
