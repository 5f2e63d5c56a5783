"""Makes the kernel for a way of computing, with what all kernels of a device share."""

from __future__ import annotations

from functools import cached_property

import torch

from baseboard.contract import AttentionKernel, AttentionSpec
from baseboard_ascend_npu.band import measure_band
from baseboard_ascend_npu.fused import FusedCall, FusedCallWithSinks, compressed_mask
from baseboard_ascend_npu.kernels import FusedKernel, GatherKernel, PagedDecodeKernel
from baseboard_ascend_npu.operators import Operators
from baseboard_ascend_npu.support import Way


class KernelFactory:
    """Kernels of one device. The mask and the meaning of a band are found when the first layer needs them."""

    def __init__(self, device: torch.device, operators: Operators) -> None:
        self.device = device
        self.operators = operators

    def make(self, way: Way, attention: AttentionSpec) -> AttentionKernel:
        """A kernel for ``attention``; the gathering one where ``way`` cannot be gone on this device."""
        ops = self.operators
        window = attention.sliding_window
        if way is Way.PAGED_DECODE and ops.paged is not None:
            return PagedDecodeKernel(ops.scatter, ops.paged, attention, self.device)
        if way is Way.GATHER or (window is not None and self.band is None):
            return GatherKernel(ops.scatter, attention, self.device)
        pre_tokens = None if window is None or self.band is None else window + self.band
        if way is Way.FUSED_WITH_SINKS and ops.fused_with_sinks is not None:
            with_sinks = FusedCallWithSinks(ops.fused_with_sinks, attention, self.mask)
            return FusedKernel(ops.scatter, with_sinks, pre_tokens)
        return FusedKernel(ops.scatter, self.fused_call(attention), pre_tokens)

    def fused_call(self, attention: AttentionSpec) -> FusedCall:
        """The fused operator for layers of this kind."""
        return FusedCall(self.operators.fused, attention, self.mask)

    def tells_lengths_alone(self, way: Way, attention: AttentionSpec) -> bool:
        """Whether a kernel's decode steps differ in nothing but the lengths that the operator is told, and tensors."""
        return way is not Way.GATHER and (attention.sliding_window is None or self.band is not None)

    @cached_property
    def mask(self) -> torch.Tensor:
        """The compressed mask, 4 MiB."""
        return compressed_mask(self.device)

    @cached_property
    def band(self) -> int | None:
        """What turns a window into the operator's ``pre_tokens``; None where nothing does."""
        return measure_band(self.operators, self.mask)
