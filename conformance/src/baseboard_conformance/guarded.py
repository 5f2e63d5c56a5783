"""A tensor between two bands of a known pattern: whoever writes before or behind it is found out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baseboard_conformance.bench import Bench, require

if TYPE_CHECKING:
    import torch

_BAND = 1024  # elements on each side
_PATTERN = 77.0  # exact in every dtype, integers too


@dataclass(frozen=True, slots=True, eq=False)
class Guarded:
    """``inner`` is contiguous and lies in the middle of ``whole``."""

    name: str
    whole: torch.Tensor
    inner: torch.Tensor
    before: torch.Tensor  #: what ``inner`` held

    def check_bands(self) -> None:
        for side, band in (("before", self.whole[:_BAND]), ("behind", self.whole[-_BAND:])):
            touched = int((band != _PATTERN).sum().item())
            require(
                not touched, f"{touched} elements {side} {self.name} were overwritten: a write ran out of the buffer"
            )

    def check_unchanged(self) -> None:
        import torch

        same = torch.equal(self.inner.view(torch.uint8), self.before.view(torch.uint8))
        require(same, f"{self.name} was changed by the call; inputs belong to the caller")


def guard(bench: Bench, name: str, values: torch.Tensor) -> Guarded:
    """A guarded copy of ``values``; on the same device."""
    import torch

    whole = torch.full((values.numel() + 2 * _BAND,), _PATTERN, dtype=values.dtype, device=values.device)
    inner = whole[_BAND:-_BAND].view(values.shape)
    inner.copy_(values)
    bench.hook.synchronize()
    return Guarded(name, whole, inner, inner.clone())
