"""What an operator's documents demand, as assertions with a name each."""

from __future__ import annotations

from dataclasses import dataclass


class ConstraintViolation(RuntimeError):
    """A call that the documents forbid. ``constraint`` names which: ``"fused.table.dtype"``.

    A RuntimeError, as torch_npu raises for whatever CANN refuses.
    """

    def __init__(self, constraint: str, got: object) -> None:
        self.constraint = constraint
        super().__init__(f"{constraint}: got {got}")


@dataclass(frozen=True, slots=True)
class Checks:
    """The constraints of one operator."""

    operator: str

    def require(self, name: str, kept: object, got: object) -> None:
        """Raise unless ``kept``; ``got`` is what the call had."""
        if not kept:
            raise ConstraintViolation(f"{self.operator}.{name}", got)
