"""_npu_paged_attention: decodes only, one row a token; the lengths are host memory, read when it runs."""

from __future__ import annotations

import torch

from baseboard_ascend_standin.emulator.calls import Call
from baseboard_ascend_standin.emulator.constraints import Checks

_CHECKS = Checks("paged")


def paged_attention(call: Call) -> None:
    _check_tensors(call)
    _check_lengths(call)
    ratio = call.num_heads // call.num_kv_heads
    size = call.key_cache.shape[1]
    for token, (row, length) in enumerate(zip(call.block_table, call.context_lens.tolist(), strict=True)):
        blocks = row[: -(-length // size)].long()
        key, value = (cache[blocks].flatten(0, 1)[:length].float() for cache in (call.key_cache, call.value_cache))
        query = call.query[token].float().unflatten(0, (-1, ratio))
        weights = (torch.einsum("hgd,khd->hgk", query, key) * call.scale_value).softmax(-1)
        call.out[token] = torch.einsum("hgk,khd->hgd", weights, value).flatten(0, 1).to(call.out.dtype)


def _check_tensors(call: Call) -> None:
    require = _CHECKS.require
    require("chip", call.chip.has_operators, call.chip.soc)
    query, key, value, out = call.query, call.key_cache, call.value_cache, call.out
    for name in ("query", "key_cache", "value_cache", "block_table", "out"):
        require(f"{name}.device", name in call.on_device, "host")
        require(f"{name}.contiguous", getattr(call, name).is_contiguous(), getattr(call, name).stride())
    dtypes = {query.dtype, key.dtype, value.dtype, out.dtype}
    require("dtype", len(dtypes) == 1 and dtypes <= {torch.float16, torch.bfloat16}, dtypes)
    require("query.shape", query.ndim == 3 and query.shape[1] == call.num_heads, query.shape)
    require("heads", call.num_heads % call.num_kv_heads == 0, (call.num_heads, call.num_kv_heads))
    for cache in (key, value):
        require("cache.shape", cache.ndim == 4 and cache.shape[2] == call.num_kv_heads, cache.shape)
        require("block_size", cache.shape[1] % 16 == 0 and cache.shape[1] <= 128, cache.shape[1])
        require("head_size", 0 < cache.shape[3] <= 256, cache.shape[3])
    require("cache.alike", key.shape[:3] == value.shape[:3], (key.shape, value.shape))
    require("query.head_size", query.shape[2] == key.shape[3], (query.shape, key.shape))
    require("out.shape", out.shape == (*query.shape[:2], value.shape[3]), out.shape)


def _check_lengths(call: Call) -> None:
    require = _CHECKS.require
    table, lengths = call.block_table, call.context_lens
    require("table.dtype", table.dtype == torch.int32, table.dtype)
    require("table.rows", table.ndim == 2 and len(table) == len(call.query), table.shape)
    require("lengths.dtype", lengths.dtype == torch.int32, lengths.dtype)
    require("lengths.host", "context_lens" not in call.on_device, "device")
    require("lengths.number", lengths.shape == (len(call.query),), lengths.shape)
    require("lengths.range", 1 <= int(lengths.min()) <= int(lengths.max()) <= table.shape[1] * call.key_cache.shape[1],
            lengths.tolist())  # fmt: skip
    require("table.ids", bool(((table >= 0) & (table < len(call.key_cache))).all()), table.tolist())
