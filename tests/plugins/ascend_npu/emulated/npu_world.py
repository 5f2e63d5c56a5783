"""Worlds of sequences, as those of the reference backend's tests, with their tensors on the NPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from baseboard.contract import AttentionSpec, KVCache, KVCacheSpec
from baseboard.kit.dtypes import torch_dtype
from core.backends.world import Row, World

__all__ = ["NpuWorld", "Row", "make_world"]


class NpuWorld(World):
    """Keys, values and queries are made on the host, as before; every call of the backend gets copies on the NPU."""

    def poisoned_cache(self, backend: Any, poison: float) -> KVCache:
        cache = backend.allocate_kv_cache(self.kv, self.num_blocks)
        for plane in cache.planes:
            plane.view(torch_dtype(self.kv.dtype)).fill_(poison)
        kernel = backend.attention_kernel(self.spec, self.kv)
        for index, row in enumerate(self.rows):
            done = row.seq_len - row.query_len
            if done and not row.padding:
                metadata = backend.build_attention_metadata(self.only(index, Row(done, done)).batch(), cache)
                key, value = self.key[index][:done].to("npu"), self.value[index][:done].to("npu")
                kernel.write(key, value, cache.layer(0), metadata)
        return cache

    def step(self, backend: Any, cache: KVCache, out: torch.Tensor | None = None) -> torch.Tensor:
        kernel = backend.attention_kernel(self.spec, self.kv)
        metadata = backend.build_attention_metadata(self.batch(), cache)
        kernel.write(self._new(self.key).to("npu"), self._new(self.value).to("npu"), cache.layer(0), metadata)
        return kernel.attend(torch.cat(self.query).to("npu"), cache.layer(0), metadata, out).cpu()


def make_world(
    rows: Sequence[Row],
    dtype: str = "bfloat16",
    heads: tuple[int, int] = (4, 2),
    head_size: int = 128,
    block_size: int = 16,
    **options: Any,
) -> NpuWorld:
    """``options`` go to the world or, if it has no such field, to its attention."""
    own = {name: options.pop(name) for name in ("num_decodes", "causal", "seed", "shared_blocks") if name in options}
    value_size = options.pop("head_size_v", head_size)
    spec = AttentionSpec(heads[0], heads[1], head_size, head_size**-0.5, **options)
    kv = KVCacheSpec(1, heads[1], head_size, value_size, dtype, block_size)  # pyright: ignore[reportArgumentType]
    return NpuWorld(spec, kv, rows, **own)
