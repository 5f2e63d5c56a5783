"""A right backend that records decode steps and replays them, in plain torch on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from baseboard.contract import AttentionKernel, AttentionSpec, KVCacheSpec, LayerKind, Unsupported, hookimpl
from baseboard_conformance.mutants.plain import PlainBackend
from baseboard_conformance.mutants.plain_kernel import Layer, Metadata, PlainKernel

#: What takes a number from the device to the host: a recorder cannot know what is done with it.
_ASKS: Final = frozenset({"aten::_local_scalar_dense", "aten::nonzero"})


@dataclass(slots=True, eq=False)
class Tape:
    """What a step does: actions that are done again with the tensors they had then."""

    actions: list[Callable[[], object]] = field(default_factory=list[Callable[[], object]])

    def play(self) -> None:
        with torch.inference_mode():  # as what it writes to was made
            for action in self.actions:
                action()


class Recorder(TorchDispatchMode):
    """Does what it sees and puts it on a tape; an attention kernel's calls are one action each."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - torch's own signature is untyped
        self._tape: Final = tape
        self._inside = False  # a call that is noted as a whole

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = partial(func, *args, **(kwargs or {}))
        if self._inside:
            return call()
        if func.name().partition(".")[0] in _ASKS:
            raise Unsupported([f"{func.name()} asks the device for a number, which a recorded step cannot"])
        return self._noted(call)

    def note(self, call: Callable[[], object]) -> Any:
        """Do a call as one action: what it consists of is not recorded."""
        self._inside = True
        try:
            return self._noted(call)
        finally:
            self._inside = False

    def _noted(self, call: Callable[[], object]) -> Any:
        made = call()
        self._tape.actions.append(partial(_again, call, made))
        return made


def _again(call: Callable[[], object], made: object) -> None:
    """Do a call again; its results go where they lay when it was recorded."""
    for old, new in zip(_members(made), _members(call()), strict=True):
        if isinstance(old, torch.Tensor) and old is not new:
            old.copy_(new)


def _members(made: object) -> Sequence[Any]:
    return cast("Sequence[Any]", made) if isinstance(made, (tuple, list)) else (made,)


@dataclass(slots=True, eq=False)
class TapeGraph:
    """A recorded step; ``own`` is the metadata that its calls read, one a group of layers."""

    tape: Tape
    own: tuple[Metadata, ...]

    def replay(self, metadata: Sequence[Metadata]) -> None:
        for old, new in zip(self.own, metadata, strict=True):
            self.take(old, new)
        self.tape.play()

    def take(self, old: Metadata, new: Metadata) -> None:
        """Put a step's numbers where the recorded calls read them."""
        old.lengths[...] = new.lengths
        old.tables[...] = new.tables
        old.slots[...] = new.slots


class RecordedKernel:
    """A kernel that tells the recorder of each call, while there is one."""

    def __init__(self, backend: Recording, kernel: PlainKernel) -> None:
        self._backend: Final = backend
        self._kernel: Final = kernel

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: Layer, metadata: Metadata) -> None:
        self._do(partial(self._kernel.write, key, value, layer, metadata))

    def attend(
        self, query: torch.Tensor, layer: Layer, metadata: Metadata, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        made: torch.Tensor = self._do(partial(self._kernel.attend, query, layer, metadata, out))
        return made

    def _do(self, call: Callable[[], object]) -> Any:
        recorder = self._backend.recorder
        return call() if recorder is None else recorder.note(call)


class Recording(PlainBackend):
    """Decode steps are recorded call by call and replayed in the tensors they had."""

    Graph: ClassVar[type[TapeGraph]] = TapeGraph
    recorder: Recorder | None = None

    @hookimpl
    def attention_kernel(self, attention: AttentionSpec, kv: KVCacheSpec) -> AttentionKernel:
        reasons = self.reasons(kv, attention)
        if reasons:
            raise Unsupported(reasons)
        return RecordedKernel(self, self.Kernel(attention, kv))

    @hookimpl
    def graph_runner(self, layers: Sequence[LayerKind]) -> Recording:
        return self

    def capture(self, metadata: Sequence[Metadata], compute: Callable[[], None]) -> TapeGraph:
        tape = Tape()
        self.recorder = Recorder(tape)
        try:
            self.listen(self.recorder, compute)
        finally:
            self.recorder = None
        return self.Graph(tape, tuple(metadata))

    # --- what can go wrong --------------------------------------------------------------------------------------

    def listen(self, recorder: Recorder, compute: Callable[[], None]) -> None:
        with recorder:
            compute()
