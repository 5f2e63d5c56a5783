"""Wrong with memory that belongs to somebody else: writes, inputs, index arrays, layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import AttentionKernel, AttentionSpec, KVCache, KVCacheSpec, StepBatch, hookimpl
from baseboard_conformance.bench import to_torch
from baseboard_conformance.mutants.plain import PlainBackend
from baseboard_conformance.mutants.plain_kernel import Layer, Metadata, PlainKernel


class PaddingToBlockOne(PlainBackend):
    """Padding is written to block 1."""

    class Kernel(PlainKernel):
        def write_slots(self, metadata: Metadata) -> NDArray[np.int64]:
            padding = metadata.slots < metadata.block_size
            return np.where(padding, metadata.slots + metadata.block_size, metadata.slots)


class WipesBlock(PlainBackend):
    """A write clears the rest of each block that it touches, earlier tokens included."""

    class Kernel(PlainKernel):
        def write(self, key: torch.Tensor, value: torch.Tensor, layer: Layer, metadata: Metadata) -> None:
            blocks = np.unique(metadata.slots // metadata.block_size)
            slots = to_torch((blocks[:, None] * metadata.block_size + np.arange(metadata.block_size)).ravel())
            layer.key[slots] = 0
            layer.value[slots] = 0
            super().write(key, value, layer, metadata)


class WritesOneMore(PlainBackend):
    """The result runs one element out of its buffer."""

    class Kernel(PlainKernel):
        def attend(
            self, query: torch.Tensor, layer: Layer, metadata: Metadata, out: torch.Tensor | None = None
        ) -> torch.Tensor:
            result = super().attend(query, layer, metadata, out)
            end = result.storage_offset() + result.numel()
            if end < result.untyped_storage().nbytes() // result.itemsize:
                result.as_strided((1,), (1,), end).fill_(0)
            return result


class LeavesRows(PlainBackend):
    """The last row of ``out`` is never written."""

    class Kernel(PlainKernel):
        def attend(
            self, query: torch.Tensor, layer: Layer, metadata: Metadata, out: torch.Tensor | None = None
        ) -> torch.Tensor:
            last = None if out is None else out[-1].clone()
            result = super().attend(query, layer, metadata, out)
            if last is not None and len(result) > 1:
                result[-1] = last
            return result


class ScalesQuery(PlainBackend):
    """The query is scaled in place."""

    class Kernel(PlainKernel):
        def attend(
            self, query: torch.Tensor, layer: Layer, metadata: Metadata, out: torch.Tensor | None = None
        ) -> torch.Tensor:
            query.mul_(self.spec.scale)
            return super().attend(query, layer, metadata, out)

        def scale(self) -> float:
            return 1.0


class IgnoresStrides(PlainBackend):
    """The query is read as if its rows lay without gaps."""

    class Kernel(PlainKernel):
        def attend(
            self, query: torch.Tensor, layer: Layer, metadata: Metadata, out: torch.Tensor | None = None
        ) -> torch.Tensor:
            size = query.shape[1] * query.shape[2]
            packed = query.as_strided(query.shape, (size, query.shape[2], 1))
            return super().attend(torch.nan_to_num(packed), layer, metadata, out)


class ChangesBatch(PlainBackend):
    """Unused entries of the block tables are overwritten for the backend's convenience."""

    def metadata(self, batch: StepBatch, cache: KVCache) -> Metadata:
        made = super().metadata(batch, cache)
        batch.block_tables[:, -1] = np.maximum(batch.block_tables[:, -1], 1)
        return made


class LateMetadata(PlainBackend):
    """The index arrays are read when the kernels run, not when they are handed over."""

    def metadata(self, batch: StepBatch, cache: KVCache) -> Metadata:
        return replace(
            super().metadata(batch, cache),
            starts=batch.query_start_loc,
            lengths=batch.seq_lens,
            tables=batch.block_tables,
            slots=batch.slot_mapping,
        )


class OneMetadata(PlainBackend):
    """There is one metadata object; building the next step's changes this one's."""

    def metadata(self, batch: StepBatch, cache: KVCache) -> Metadata:
        fresh = super().metadata(batch, cache)
        kept: Metadata | None = getattr(self, "kept", None)
        if kept is None:
            self.kept = fresh
            return fresh
        for name in ("starts", "lengths", "tables", "slots", "block_size", "causal"):
            setattr(kept, name, getattr(fresh, name))
        return kept


class OneLayer(PlainBackend):
    """All layers are stored in the first."""

    def layers(self, spec: KVCacheSpec, planes: tuple[torch.Tensor, ...]) -> tuple[Layer, ...]:
        return (super().layers(spec, planes)[0],) * spec.num_layers


class HalfSupportsSoftcap(PlainBackend):
    """The softcap is not declared; it is not refused either, and ignored."""

    can = replace(PlainBackend.can, features=PlainBackend.can.features - {"softcap"})

    class Kernel(PlainKernel):
        def capped(self, x: torch.Tensor) -> torch.Tensor:
            return x

    def reasons(self, kv: KVCacheSpec, attention: AttentionSpec) -> list[str]:
        return super().reasons(kv, replace(attention, softcap=None))


class KernelForEverything(PlainBackend):
    """``unsupported`` gives reasons; ``attention_kernel`` makes a kernel all the same."""

    @hookimpl
    def attention_kernel(self, attention: AttentionSpec, kv: KVCacheSpec) -> AttentionKernel:
        return self.Kernel(attention, kv)


class AnyBlockSize(PlainBackend):
    """Block sizes that are not declared are taken."""

    def reasons(self, kv: KVCacheSpec, attention: AttentionSpec) -> list[str]:
        return super().reasons(replace(kv, block_size=16), attention)


class RefusesDeclared(PlainBackend):
    """float16 is declared, and refused."""

    def reasons(self, kv: KVCacheSpec, attention: AttentionSpec) -> list[str]:
        slow = ["float16 is slow here"] if kv.dtype == "float16" else []
        return [*slow, *super().reasons(kv, attention)]
