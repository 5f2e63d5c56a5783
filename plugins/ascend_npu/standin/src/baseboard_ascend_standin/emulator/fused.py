"""npu_fused_infer_attention_score and its version 2: layout TND over pages, without quantisation and rope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from baseboard_ascend_standin.emulator.calls import Call, Chip
from baseboard_ascend_standin.emulator.constraints import Checks

_CHECKS = Checks("fused")
_INT32 = 2**31 - 1
_USED = {
    "query", "key", "value", "atten_mask", "block_table", "input_layout", "sparse_mode", "pre_tokens", "next_tokens",
    "block_size", "inner_precise", "num_key_value_heads", "workspace", "out",
}  # fmt: skip


@dataclass(frozen=True)
class Fused:
    """One call, in the names of version 1."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    table: torch.Tensor
    query_ends: Sequence[int]
    lengths: Sequence[int]
    heads: int
    kv_heads: int
    scale: float
    sparse_mode: int
    pre_tokens: int
    next_tokens: int
    block_size: int
    sinks: torch.Tensor | None
    chip: Chip


def version_1(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    names = {"actual_seq_lengths", "actual_seq_lengths_kv", "num_heads", "scale"}
    _common(call, names)
    return _run(_fused(call, call.actual_seq_lengths, call.actual_seq_lengths_kv, call.num_heads, call.scale, None))


def version_2(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    names = {"actual_seq_qlen", "actual_seq_kvlen", "num_query_heads", "softmax_scale", "learnable_sink"}
    _common(call, names)
    sinks = call.learnable_sink
    if sinks is not None:
        _CHECKS.require("sinks.dtype", sinks.dtype == torch.bfloat16, sinks.dtype)
        _CHECKS.require("sinks.shape", sinks.shape == (call.num_query_heads,), sinks.shape)
        _CHECKS.require("sinks.head_size", call.query.shape[-1] <= 128, call.query.shape[-1])
        _CHECKS.require("sinks.device", "learnable_sink" in call.on_device, "host")
    return _run(
        _fused(call, call.actual_seq_qlen, call.actual_seq_kvlen, call.num_query_heads, call.softmax_scale, sinks)
    )


def _fused(call: Call, ends: Any, lengths: Any, heads: int, scale: float, sinks: torch.Tensor | None) -> Fused:
    return Fused(
        query=call.query,
        key=call.key,
        value=call.value,
        mask=call.atten_mask,
        table=call.block_table,
        query_ends=ends,
        lengths=lengths,
        heads=heads,
        kv_heads=call.num_key_value_heads or heads,
        scale=scale,
        sparse_mode=call.sparse_mode,
        pre_tokens=call.pre_tokens,
        next_tokens=call.next_tokens,
        block_size=call.block_size,
        sinks=sinks,
        chip=call.chip,
    )


def _common(call: Call, names: set[str]) -> None:
    """What concerns the arguments as such."""
    require = _CHECKS.require
    require("chip", call.chip.has_operators, call.chip.soc)
    require("arguments", call.given <= _USED | names, sorted(call.given - _USED - names))
    require("layout", call.input_layout == "TND", call.input_layout)
    for name in ("query", "key", "value", "atten_mask", "block_table"):
        tensor = getattr(call, name)
        if tensor is not None:
            require(f"{name}.device", name in call.on_device, "host")
            require(f"{name}.contiguous", tensor.is_contiguous(), tensor.stride())
    require("inner_precise", call.inner_precise == 0 or call.query.dtype != torch.bfloat16, call.inner_precise)


def _run(call: Fused) -> tuple[torch.Tensor, torch.Tensor]:
    _check_heads(call)
    _check_cache(call)
    _check_lengths(call)
    _check_table(call)
    _check_mask(call)
    return _attend(call), torch.zeros(1)


def _check_heads(call: Fused) -> None:
    require = _CHECKS.require
    dtypes = {call.query.dtype, call.key.dtype, call.value.dtype}
    require("dtype", len(dtypes) == 1 and dtypes <= {torch.float16, torch.bfloat16}, dtypes)
    require("query.rank", call.query.ndim == 3, call.query.shape)
    require("query.heads", call.query.shape[1] == call.heads, (call.query.shape, call.heads))
    require("heads.number", 1 <= call.heads <= 256, call.heads)
    require("heads.shared", call.heads % call.kv_heads == 0, (call.heads, call.kv_heads))
    require("heads.ratio", call.heads // call.kv_heads <= 64, (call.heads, call.kv_heads))
    size = call.query.shape[2]
    small = size == 64 and (call.heads == call.kv_heads or call.chip.gqa_64)
    require("head_size", size == 128 or small, size)


def _check_cache(call: Fused) -> None:
    require = _CHECKS.require
    size = call.query.shape[2]
    require("block_size", 0 < call.block_size <= 1024 and call.block_size % 16 == 0, call.block_size)
    shapes = {(call.block_size, call.kv_heads * size), (call.kv_heads, call.block_size, size)}
    require("cache.shape", tuple(call.key.shape[1:]) in shapes, call.key.shape)
    require("cache.alike", call.key.shape == call.value.shape, (call.key.shape, call.value.shape))
    require("cache.row", call.key.ndim == 4 or call.kv_heads * size <= 65535, call.kv_heads * size)
    require("cache.elements", call.key.numel() <= _INT32, call.key.numel())


def _check_lengths(call: Fused) -> None:
    require = _CHECKS.require
    ends, lengths = call.query_ends, call.lengths
    require("query_ends.given", ends is not None, ends)
    require("lengths.given", lengths is not None, lengths)
    require("query_ends.number", 0 < len(ends) <= 4096, len(ends))
    require("lengths.number", len(lengths) == len(ends), (len(lengths), len(ends)))
    rising = all(0 <= a <= b for a, b in zip([0, *ends], ends, strict=False))
    require("query_ends.cumulative", rising, ends)
    require("query_ends.total", ends[-1] == len(call.query), (ends[-1], len(call.query)))
    require("lengths.negative", min(lengths) >= 0, lengths)
    counts = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    short = call.sparse_mode == 3 and any(q > kv for q, kv in zip(counts, lengths, strict=True))
    require("lengths.causal", not short, (counts, lengths))


def _check_table(call: Fused) -> None:
    require = _CHECKS.require
    table = call.table
    require("table.given", table is not None, table)
    require("table.dtype", table.dtype == torch.int32, table.dtype)
    require("table.rank", table.ndim == 2, table.shape)
    require("table.rows", table.shape[0] == len(call.lengths), (table.shape, len(call.lengths)))
    needed = -(-max(call.lengths) // call.block_size)
    require("table.columns", table.shape[1] >= needed, (table.shape, needed))
    for row, length in zip(table, call.lengths, strict=True):
        used = row[: -(-length // call.block_size)]
        require("table.ids", bool(((used >= 0) & (used < len(call.key))).all()), used.tolist())


def _check_mask(call: Fused) -> None:
    require = _CHECKS.require
    require("sparse_mode", call.sparse_mode in (0, 3, 4), call.sparse_mode)
    mask = call.mask
    if call.sparse_mode == 0:
        require("mask.none", mask is None, None if mask is None else mask.shape)
        return
    require("mask.given", mask is not None, mask)
    assert mask is not None
    require("mask.shape", mask.shape in {(2048, 2048), (1, 2048, 2048), (1, 1, 2048, 2048)}, mask.shape)
    require("mask.dtype", mask.dtype in {torch.bool, torch.int8, torch.uint8}, mask.dtype)
    require("mask.triangle", torch.equal(mask.reshape(2048, 2048).bool(), _upper()), "another pattern")
    if call.sparse_mode == 4:
        require("band", call.pre_tokens + call.next_tokens >= 0, (call.pre_tokens, call.next_tokens))


@cache
def _upper() -> torch.Tensor:
    return torch.ones(2048, 2048, dtype=torch.bool).triu_(1)


def _attend(call: Fused) -> torch.Tensor:
    """In float32, sequence by sequence."""
    out = torch.empty_like(call.query)
    size, begin = call.query.shape[2], 0
    for row, end, length in zip(call.table, call.query_ends, call.lengths, strict=True):
        blocks = row[: -(-length // call.block_size)].long()
        key, value = (_tokens(cache[blocks], call, size)[:length] for cache in (call.key, call.value))
        query = call.query[begin:end].float().unflatten(1, (call.kv_heads, -1))
        scores = torch.einsum("qhgd,khd->hgqk", query, key) * call.scale
        scores.masked_fill_(_hidden(call, end - begin, length), -torch.inf)
        if call.sinks is not None:
            sinks = call.sinks.float().view(call.kv_heads, -1, 1, 1).expand(-1, -1, end - begin, 1)
            weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        out[begin:end] = torch.einsum("hgqk,khd->qhgd", weights, value).flatten(1, 2).to(out.dtype)
        begin = end
    return out


def _tokens(blocks: torch.Tensor, call: Fused, size: int) -> torch.Tensor:
    """Gathered blocks as ``[tokens, Hkv, D]`` in float32."""
    if blocks.ndim == 4:
        blocks = blocks.transpose(1, 2)
    return blocks.reshape(-1, call.kv_heads, size).float()


def _hidden(call: Fused, queries: int, length: int) -> torch.Tensor:
    """Which keys a query does not see, bool ``[q, k]``."""
    position = torch.arange(length - queries, length)[:, None]
    key = torch.arange(length)[None]
    if call.sparse_mode == 0:
        return torch.zeros(queries, length, dtype=torch.bool)
    if call.sparse_mode == 3:
        return key > position
    before = call.pre_tokens if call.chip.band_excludes_self else call.pre_tokens - 1
    return (key < position - before) | (key > position + call.next_tokens)
