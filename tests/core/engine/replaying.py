"""A device that replays, made of the reference backend: what is recorded reads the numbers that lie there then."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from baseboard.contract import Graph, GraphRunner, LayerKind, StepBatch, Unsupported, hookimpl


@dataclass
class Box:
    """Metadata whose place stays while its content changes."""

    content: Any
    batch: StepBatch


@dataclass(frozen=True)
class Recorded:
    metadata: Sequence[Any]
    compute: Callable[[], None]

    def replay(self, metadata: Sequence[Any]) -> None:
        for old, new in zip(self.metadata, metadata, strict=True):
            assert old.batch.block_tables.shape == new.batch.block_tables.shape
            assert old.batch.num_tokens == new.batch.num_tokens == new.batch.num_decodes
            assert len(set(new.batch.slot_mapping.tolist())) == new.batch.num_tokens
            old.content = new.content
        self.compute()


@dataclass
class Runner:
    """Notes what it records: the number of sequences of each."""

    layers: tuple[LayerKind, ...]
    recorded: list[int] = field(default_factory=list)
    refusal: str | None = None
    room: int | None = None  #: for so many recordings there is memory
    made: list[weakref.ref[Recorded]] = field(default_factory=list)

    def capture(self, metadata: Sequence[Any], compute: Callable[[], None]) -> Graph:
        if self.refusal is not None:
            raise Unsupported([self.refusal])
        if self.room is not None and len(self.recorded) >= self.room:
            raise torch.OutOfMemoryError("no 3 GiB left")
        self.recorded.append(metadata[0].batch.num_seqs)
        compute()
        made = Recorded(metadata, compute)
        self.made.append(weakref.ref(made))
        return made

    def kept(self) -> list[Recorded]:
        """Recordings that somebody still holds."""
        return [found for reference in self.made if (found := reference()) is not None]


class Unboxing:
    """A kernel that looks into the box when it runs."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def write(self, key: Any, value: Any, layer: Any, metadata: Box) -> None:
        self._kernel.write(key, value, layer, metadata.content)

    def attend(self, query: Any, layer: Any, metadata: Box, out: Any = None) -> Any:
        return self._kernel.attend(query, layer, metadata.content, out)


class Replaying:
    """The instrument that makes it."""

    def __init__(self, refusal: str | None = None, room: int | None = None) -> None:
        self.runners: list[Runner] = []
        self._room = room
        self._refusal = refusal

    @hookimpl(wrapper=True)
    def build_attention_metadata(self, batch: StepBatch) -> Generator[None, Any, Box]:
        return Box((yield), batch)

    @hookimpl(wrapper=True)
    def attention_kernel(self) -> Generator[None, Any, Unboxing]:
        return Unboxing((yield))

    @hookimpl(wrapper=True)
    def graph_runner(self, layers: Sequence[LayerKind]) -> Generator[None, Any, GraphRunner]:
        yield
        self.runners.append(Runner(tuple(layers), refusal=self._refusal, room=self._room))
        return self.runners[-1]
