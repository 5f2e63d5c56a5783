"""A call of an operator that can be run later than it was made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch.utils._pytree import tree_flatten, tree_map

from baseboard_ascend_standin.emulator.alias import alias
from baseboard_ascend_standin.emulator.calls import Call, Chip, Emulation


def _histogram(counted: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    return torch.histc(counted.float(), *args, **options).to(counted.dtype)


#: What the NPU computes for dtypes that the CPU refuses.
_INSTEAD: Final[dict[str, Callable[..., Any]]] = {"aten::histc": _histogram}


class Results:
    """Tensors of the NPU that stand for what a call returns before it has run, and their memory."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.places = [alias(leaf) for leaf in tensors_of(value)]


class Job:
    """A call of an operator that can be run at any time after it was made. Holds its tensors until then."""

    def __init__(self, func: Any, args: Any, kwargs: Any, emulation: Emulation | None, chip: Chip) -> None:
        self._func = func
        self._given = (args, kwargs)
        self._emulation = emulation
        self._chip = chip
        self._aliases: dict[int, torch.Tensor | None] = {}  # by id of the alias: the NPU tensor
        self._kept: list[torch.Tensor] = []
        self._host = tree_map(self._to_host, self._given)

    def run(self) -> Any:
        """On CPU tensors over the NPU's memory."""
        args, kwargs = self._host
        if self._emulation is None:
            return _INSTEAD.get(self._func._schema.name, self._func)(*args, **kwargs)
        return self._emulation(self._call(args, kwargs))

    def run_into(self, out: Results) -> None:
        for place, leaf in zip(out.places, tensors_of(self.run()), strict=True):
            if id(leaf) not in self._aliases:
                place.copy_(leaf)

    def let_go(self, out: Results) -> None:
        """Hold no tensors any more, only where they lie: a captured model does not keep what it works on."""
        self._given = ((), {})
        self._aliases = dict.fromkeys(self._aliases)
        out.value = None

    def on_npu(self, result: Any) -> Any:
        """A result of :meth:`run` as NPU tensors: the arguments themselves where they were written to."""
        return tree_map(self._to_npu, result)

    def allocate(self) -> Results | None:
        """Room for the result, by running the operator's own shape function; None where it depends on numbers."""
        if "out" in self._given[1]:
            return Results(tuple(self._given[1]["out"]))
        written = list(self._written())
        if written or not self._func._schema.returns:
            returned = written[: len(self._func._schema.returns)]
            return Results(returned[0] if len(returned) == 1 else tuple(returned) or None)
        try:
            args, kwargs = tree_map(_to_meta, self._given)
            shapes = self._func(*args, **kwargs)
        except (NotImplementedError, RuntimeError):
            return None
        if not all(isinstance(leaf, torch.Tensor) for leaf in tree_flatten(shapes)[0]):
            return None
        return Results(tree_map(lambda t: _empty_on_npu(t) if isinstance(t, torch.Tensor) else t, shapes))

    def _written(self) -> Iterator[torch.Tensor]:
        args, kwargs = self._given
        for index, argument in enumerate(self._func._schema.arguments):
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield from tensors_of(value)

    def _call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
        arguments = self._func._schema.arguments
        by_name = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | kwargs
        filled = {a.name: by_name.get(a.name, a.default_value) for a in arguments}
        on_device = {name for name, value in filled.items() if id(value) in self._aliases}
        return Call(filled, frozenset(by_name), frozenset(on_device), self._chip)

    def _to_host(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        if not is_npu(leaf):
            return leaf
        made = alias(leaf)
        self._aliases[id(made)] = leaf
        self._kept.append(made)  # else its id could be given to another
        return made

    def _to_npu(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) in self._aliases:
            return self._aliases[id(leaf)]
        made = _empty_on_npu(leaf)
        alias(made).copy_(leaf)
        return made


def _empty_on_npu(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device="npu")


def _to_meta(leaf: Any) -> Any:
    if isinstance(leaf, torch.device):
        return torch.device("meta")
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device="meta")


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def is_npu(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.device.type == "npu"
