"""The hooks of a backend plugin.

*Discovery hooks* are implemented by the light module that the entry point (group ``baseboard.backends``) names.
*Backend hooks* are methods of the object that ``open_backend`` returns; it is registered in a plugin manager of its
own, beside the instruments (group ``baseboard.instruments``) that may wrap any of them. The core calls backend hooks
once a step or less; what runs per layer is made once by a factory hook and called directly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pluggy
from numpy.typing import NDArray

from baseboard.contract.batch import StepBatch
from baseboard.contract.cache import AttentionKernel, KVCache, OperatorKernel, Transfer
from baseboard.contract.device import Capabilities, DeviceInfo, MemorySnapshot
from baseboard.contract.graph import GraphRunner, LayerKind
from baseboard.contract.specs import AttentionSpec, KVCacheSpec

if TYPE_CHECKING:
    import torch

PROJECT: Final = "baseboard"
BACKENDS_GROUP: Final = "baseboard.backends"
INSTRUMENTS_GROUP: Final = "baseboard.instruments"

hookspec: Final = pluggy.HookspecMarker(PROJECT)
#: Marks a function or method as the implementation of a hook.
hookimpl: Final = pluggy.HookimplMarker(PROJECT)


class DiscoveryHooks(Protocol):
    """Implemented as plain functions of a module that imports in under 50 ms and loads no accelerator library."""

    @hookspec(firstresult=True)
    def contract_version(self) -> str:
        """The contract the plugin was written for, ``"1.0"``. The core accepts its own minor and the one before."""
        ...

    @hookspec(firstresult=True)
    def probe_devices(self) -> list[DeviceInfo]:
        """The plugin's devices. Creates no device context, never raises: what is missing is said by ``reason``."""
        ...

    @hookspec(firstresult=True)
    def open_backend(self, device: DeviceInfo, options: Mapping[str, Any]) -> object:
        """Open ``device``; the object's methods are backend hooks. Raises ``BackendUnavailable`` with the reason."""
        ...


class BackendHooks(Protocol):
    """Implemented as methods of the object that ``open_backend`` returns."""

    @hookspec(firstresult=True)
    def capabilities(self) -> Capabilities:
        """What the backend promises. Constant while it is open."""
        ...

    @hookspec(firstresult=True)
    def torch_device(self) -> torch.device:
        """Where weights and activations live."""
        ...

    @hookspec(firstresult=True)
    def unsupported(self, kv: KVCacheSpec, attention: AttentionSpec) -> list[str]:
        """Reasons why this pair cannot run; empty means it will. Called before anything is allocated."""
        ...

    @hookspec(firstresult=True)
    def kv_block_nbytes(self, spec: KVCacheSpec) -> int:
        """Bytes that one block takes over all layers of the group, padding included: exact."""
        ...

    @hookspec(firstresult=True)
    def allocate_kv_cache(self, spec: KVCacheSpec, num_blocks: int) -> KVCache:
        """Zero-filled blocks ``0 .. num_blocks - 1``. Raises ``torch.OutOfMemoryError`` when they don't fit."""
        ...

    @hookspec(firstresult=True)
    def allocate_host_kv_cache(self, like: KVCache, num_blocks: int) -> KVCache:
        """The swap pool: the same planes in host memory, pinned where that exists."""
        ...

    @hookspec(firstresult=True)
    def copy_blocks(self, cache: KVCache, pairs: NDArray[np.int64]) -> None:
        """Copy blocks in all layers: ``pairs`` ``[n, 2]`` (source, destination), enqueued on the current stream.

        Raises ``ValueError`` before anything is enqueued when an id is out of range, a destination is repeated, or
        a block is both source and destination.
        """
        ...

    @hookspec(firstresult=True)
    def swap_blocks(self, source: KVCache, destination: KVCache, pairs: NDArray[np.int64]) -> Transfer:
        """Move blocks between device and host: one batched transfer, asynchronous where the chip can.

        Transfers of one backend are first in, first out. A device-to-host transfer reads what the compute enqueued
        so far has written. ``ValueError`` as in ``copy_blocks``; no pair at all gives a finished transfer.
        """
        ...

    @hookspec(firstresult=True)
    def zero_blocks(self, cache: KVCache, blocks: NDArray[np.int64]) -> None:
        """Fill blocks ``[n]`` with zeros in all layers: they must not leak what they held."""
        ...

    @hookspec(firstresult=True)
    def memory_snapshot(self) -> MemorySnapshot:
        """Memory now. The arithmetic that turns snapshots into a number of blocks is the core's."""
        ...

    @hookspec(firstresult=True)
    def reset_peak_memory(self) -> None:
        """Start the next ``peak`` at what is allocated now."""
        ...

    @hookspec(firstresult=True)
    def empty_cache(self) -> None:
        """Give memory that is reserved but unused back to the system."""
        ...

    @hookspec(firstresult=True)
    def allocate_host_buffer(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """A zeroed host array (numpy dtype name) for index arrays, in pinned memory where that exists."""
        ...

    @hookspec(firstresult=True)
    def build_attention_metadata(self, batch: StepBatch, cache: KVCache) -> object:
        """Whatever the kernels need of this step, made once for all layers; no device-to-host sync."""
        ...

    @hookspec(firstresult=True)
    def attention_kernel(self, attention: AttentionSpec, kv: KVCacheSpec) -> AttentionKernel:
        """The kernel for layers of this kind; called once per layer when a model is loaded."""
        ...

    @hookspec(firstresult=True)
    def operator_kernel(self, name: str, spec: Mapping[str, Any]) -> OperatorKernel | None:
        """A fused operator, or None: then the core's torch version runs."""
        ...

    @hookspec(firstresult=True)
    def graph_runner(self, layers: Sequence[LayerKind]) -> GraphRunner | None:
        """Records decode steps of a model with these kinds of layers, or None: every step is told kernel by kernel."""
        ...

    @hookspec(firstresult=True)
    def synchronize(self) -> None:
        """Wait until the device has finished everything. Raises ``BackendFault`` when it is lost."""
        ...

    @hookspec(firstresult=True)
    def close(self) -> None:
        """Release the device. Calling it twice is harmless."""
        ...
