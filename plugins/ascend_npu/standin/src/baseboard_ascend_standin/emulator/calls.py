"""A call of an operator as the emulation sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch


@dataclass(frozen=True, slots=True)
class Chip:
    """What differs from chip to chip, or is an open question that the documents leave."""

    soc: str = "Ascend910B2"
    band_excludes_self: bool = True  #: pre_tokens counts the keys before the query's own; else the own as well
    gqa_64: bool = False  #: heads of 64 may be shared in TND

    @property
    def has_operators(self) -> bool:
        return self.soc.startswith(("Ascend910B", "Ascend910_93"))


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments by the schema's names, defaults filled in. Tensors of the NPU are CPU tensors over its memory."""

    arguments: Mapping[str, Any]
    given: frozenset[str]  #: names that the caller wrote
    on_device: frozenset[str]  #: names whose tensors are on the NPU
    chip: Chip = field(default_factory=Chip)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.arguments[name]
        except KeyError as error:
            raise AttributeError(name) from error


#: Checks a call and computes it; what the operator returns.
Emulation: TypeAlias = Callable[[Call], "torch.Tensor | tuple[torch.Tensor, ...] | None"]
