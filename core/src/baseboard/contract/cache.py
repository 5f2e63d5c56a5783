"""Objects that a backend makes and only it looks into; the core holds them and calls these methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from baseboard.contract.specs import KVCacheSpec

if TYPE_CHECKING:
    import torch

#: What ``operator_kernel`` returns: arguments and results are those of the operator's page in the docs.
OperatorKernel: TypeAlias = Callable[..., Any]


class KVCache(Protocol):
    """Blocks of keys and values of one group. Layout is the backend's secret.

    ``planes`` shows the same memory as bytes, for copy, swap and transport: each plane is a ``torch.uint8``
    tensor ``[num_blocks, nbytes]`` in which a block is one contiguous run. A device cache and the host cache made
    like it have the same planes in the same order.
    """

    @property
    def spec(self) -> KVCacheSpec: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def planes(self) -> Sequence[torch.Tensor]: ...
    def layer(self, index: int) -> Any:
        """A token for layer ``index`` (0-based within the group), handed back to that layer's kernel."""
        ...


class Transfer(Protocol):
    """A swap under way. Its source blocks may not be rewritten before it is done."""

    @property
    def nbytes(self) -> int: ...
    def done(self) -> bool:
        """Whether it has landed; never blocks."""
        ...

    def wait(self) -> None:
        """Block the host until it has landed."""
        ...

    def wait_on_stream(self) -> None:
        """Make work enqueued from now on the current compute stream wait for it; the host goes on."""
        ...


class AttentionKernel(Protocol):
    """One layer's attention, called directly (no pluggy) for every layer of every step.

    T tokens, H query heads, Hkv KV heads, D head size, Dv value head size. The last dimension of every tensor is
    contiguous; rows may be strided. Nothing is checked here: wrap with ``baseboard.kit.checked`` to debug.
    """

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: Any, metadata: Any) -> None:
        """Store ``key`` ``[T, Hkv, D]`` and ``value`` ``[T, Hkv, Dv]`` in the slots of this step."""
        ...

    def attend(self, query: torch.Tensor, layer: Any, metadata: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        """Attention of ``query`` ``[T, H, D]`` over everything written so far; ``[T, H, Dv]``, the query's dtype.

        The result may be ``out`` or a new tensor: callers use what is returned.
        """
        ...
