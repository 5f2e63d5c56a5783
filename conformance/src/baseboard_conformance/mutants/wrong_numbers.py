"""Wrong attention: scale, softcap, biases, sinks, sums; and garbage that gets in."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard_conformance.mutants.plain import PlainBackend
from baseboard_conformance.mutants.plain_kernel import Layer, Metadata, PlainKernel


class ScaleTwoPercent(PlainBackend):
    """Logits are 2% too large."""

    class Kernel(PlainKernel):
        def scale(self) -> float:
            return 1.02 * self.spec.scale


class ScaleFromHeadSize(PlainBackend):
    """The spec's scale is ignored."""

    class Kernel(PlainKernel):
        def scale(self) -> float:
            return self.spec.head_size**-0.5


class SoftcapAfterMask(PlainBackend):
    """The softcap turns masked logits, minus infinity, into minus the cap."""

    class Kernel(PlainKernel):
        def capped(self, x: torch.Tensor) -> torch.Tensor:
            return x

        def mix(self, x: torch.Tensor, seen: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            cap = self.spec.softcap
            if cap is None:
                return super().mix(x, seen, value)
            x = cap * torch.tanh(x.masked_fill(~seen, -torch.inf) / cap)
            return super().mix(x, torch.ones_like(seen), value)


class SoftcapBeforeScale(PlainBackend):
    """The softcap sees logits that are not scaled yet."""

    class Kernel(PlainKernel):
        def capped(self, x: torch.Tensor) -> torch.Tensor:
            return super().capped(x / self.spec.scale) * self.spec.scale


class SoftcapIgnored(PlainBackend):
    """The softcap is declared and ignored."""

    class Kernel(PlainKernel):
        def capped(self, x: torch.Tensor) -> torch.Tensor:
            return x


class AlibiSign(PlainBackend):
    """Far keys are preferred."""

    class Kernel(PlainKernel):
        def slopes(self) -> tuple[float, ...] | None:
            return None if self.spec.alibi_slopes is None else tuple(-slope for slope in self.spec.alibi_slopes)


class AlibiOwnSlopes(PlainBackend):
    """The slopes are those of the paper, whatever the spec says."""

    class Kernel(PlainKernel):
        def slopes(self) -> tuple[float, ...] | None:
            heads = self.spec.num_heads
            return (
                None if self.spec.alibi_slopes is None else tuple(2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads))
            )


class SinkInNumerator(PlainBackend):
    """The sink's weight is given to the first value."""

    class Kernel(PlainKernel):
        def weighted(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            left = 1 - weights.sum(-1)
            weights = weights.clone()
            weights[..., 0] += left if self.spec.sinks is not None else 0
            return super().weighted(weights, value)


class SinksIgnored(PlainBackend):
    """Sinks are declared and ignored."""

    class Kernel(PlainKernel):
        def sinks(self) -> tuple[float, ...] | None:
            return None


class CoarseSums(PlainBackend):
    """Weighted values are summed in bfloat16, a few hundred keys at a time."""

    class Kernel(PlainKernel):
        def weighted(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            total = torch.zeros(weights.shape[1], weights.shape[0], value.shape[2], dtype=torch.bfloat16)
            for at in range(0, len(value), 16):
                part = super().weighted(weights[..., at : at + 16], value[at : at + 16])
                total += part.to(torch.bfloat16)
            return total.float()


class NoMaximum(PlainBackend):
    """exp of plain logits, as long as they are small."""

    class Kernel(PlainKernel):
        def mix(self, x: torch.Tensor, seen: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            if self.spec.sinks is not None:
                return super().mix(x, seen, value)
            weights = x.exp() * seen
            return self.weighted(weights / weights.sum(-1, keepdim=True), value)


class ZeroTimesNaN(PlainBackend):
    """The last block is read whole; what is beyond the end counts zero times its value."""

    class Kernel(PlainKernel):
        def key_positions(self, metadata: Metadata, sequence: int) -> NDArray[np.int64]:
            blocks = -(-int(metadata.lengths[sequence]) // metadata.block_size)
            return np.arange(blocks * metadata.block_size)


class AdditiveMask(PlainBackend):
    """The last block is read whole; minus infinity is added to logits that may be NaN."""

    class Kernel(PlainKernel):
        def key_positions(self, metadata: Metadata, sequence: int) -> NDArray[np.int64]:
            blocks = -(-int(metadata.lengths[sequence]) // metadata.block_size)
            return np.arange(blocks * metadata.block_size)

        def mix(self, x: torch.Tensor, seen: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            value = torch.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)
            mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
            return super().mix(x + mask, torch.ones_like(seen), value)


class WeakMask(PlainBackend):
    """Masked logits are small, not gone: large values beyond the end still show."""

    class Kernel(PlainKernel):
        def key_positions(self, metadata: Metadata, sequence: int) -> NDArray[np.int64]:
            blocks = -(-int(metadata.lengths[sequence]) // metadata.block_size)
            return np.arange(blocks * metadata.block_size)

        def mix(self, x: torch.Tensor, seen: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            x = torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0).masked_fill(~seen, -12.0)
            value = torch.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)
            return super().mix(x, torch.ones_like(seen), value)


class TruncatedValues(PlainBackend):
    """Values have the head size of the keys: what is beyond stays as it was."""

    class Kernel(PlainKernel):
        def attend(
            self, query: torch.Tensor, layer: Layer, metadata: Metadata, out: torch.Tensor | None = None
        ) -> torch.Tensor:
            result = super().attend(query, layer, metadata)
            result[..., self.spec.head_size :] = 0
            return result
