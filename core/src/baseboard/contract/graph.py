"""Decode steps that are recorded once and told to the device again in one call.

A decode step enqueues the same work every time: only numbers differ. On a fast chip telling it kernel by kernel takes
longer than computing it, so a backend may record it.

::

    capture   compute() ---> kernels, with the addresses they were given
    replay    the numbers of this step to these addresses, then all kernels in one call
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from baseboard.contract.specs import AttentionSpec, KVCacheSpec


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers of a model that attend and store alike."""

    attention: AttentionSpec
    kv: KVCacheSpec


class Graph(Protocol):
    """A recorded step. Dropping the last reference gives its memory back, once the device is done with it."""

    def replay(self, metadata: Sequence[object]) -> None:
        """Enqueue on the current stream what was recorded, with this step's numbers.

        ``metadata`` has one entry for each group of layers, as ``build_attention_metadata`` made it for a batch of
        the shapes of the recorded one. The core has written the other inputs where they were when it was recorded.
        """
        ...


class GraphRunner(Protocol):
    """Records steps of one model. What is recorded by one runner runs one after the other and may share memory."""

    def capture(self, metadata: Sequence[object], compute: Callable[[], None]) -> Graph:
        """Record what ``compute`` enqueues. It is called once or more, and reads ``metadata``.

        Everything it reads and writes stays where it is as long as the graph is used; so do the tensors of
        ``metadata``, which belong to the graph from now on. Raises ``Unsupported`` with the reason when this
        model's work cannot be recorded, ``torch.OutOfMemoryError`` when memory does not suffice; then nothing is
        kept.
        """
        ...
