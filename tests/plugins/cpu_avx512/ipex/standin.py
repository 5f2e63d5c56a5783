"""IPEX's operators, computed in float64, and every trap that the real ones lay for their caller."""

from __future__ import annotations

from typing import Any

import torch

_SAFE_BLOCKS = (8, 16, 32, 64, 128)


class EndOfProcessError(Exception):
    """Here the real operator writes or reads where it must not."""


class StandIn:
    """Stands for ``torch.ops.torch_ipex``; ``threads`` is how many the real one would run on."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads

    def reshape_and_cache(self, *args: Any) -> None:
        key, value, key_cache, value_cache, slots, kv_dtype, *scales = args
        assert kv_dtype == "auto"
        assert scales == [1.0, 1.0]
        _check_indices(slots)
        _check_cache(key_cache, key)
        _check_cache(value_cache, value)
        size = key_cache.shape[2]
        if ((slots < 0) | (slots >= len(key_cache) * size)).any():
            raise EndOfProcessError(f"slots {slots.tolist()}")
        key_cache[slots // size, :, slots % size] = key
        value_cache[slots // size, :, slots % size] = value

    def single_query_cached_kv_attention(self, *args: Any) -> None:
        out, query, keys, values, kv_head, scale, tables, lengths, block_size, longest, alibi, window, *rest = args
        assert alibi is None, "the adapter declares no ALiBi"
        assert rest[:2] == [1.0, 1.0]
        assert rest[2] < 0 or window <= 0, "a window and a softcap together are refused"
        _check_indices(tables, lengths, kv_head)
        _check_cache(keys, query)
        if not len(lengths) or block_size not in _SAFE_BLOCKS:
            raise EndOfProcessError(f"{len(lengths)} sequences in blocks of {block_size}")
        assert block_size == keys.shape[2]
        assert longest == lengths.max()
        assert lengths.min() > 0, "an empty sequence gives NaN"
        if self._taken_for_beams(tables, query.shape[1]) and window <= 0:
            raise RuntimeError("Sliding window unsupported")
        # Heads are read as if they lay side by side, whatever the strides say.
        query = torch.as_strided(query, query.shape, (query.stride(0), query.shape[2], 1))
        for row, length in enumerate(lengths.tolist()):
            first = max(0, length - window) if window > 0 else 0
            mask = torch.arange(length)[None] >= first
            out[row] = _attend(query[row, None], _gather(keys, values, tables[row], length), mask, (scale, rest[2]))[0]

    def flash_attn_varlen_func(self, *args: Any) -> None:
        out, query, keys, values, query_starts, key_starts, longest_query, longest, scale, causal, tables, *rest = args
        alibi, left, right, kv_dtype, *scales, softcap = rest
        assert causal is True
        assert kv_dtype == "auto"
        assert (right, scales) == (-1, [1.0, 1.0])
        if alibi is not None:
            raise RuntimeError("alibi_slopes is not supported for flash_attn_varlen yet")
        _check_indices(tables, query_starts, key_starts)
        _check_cache(keys, query)
        counts, lengths = query_starts.diff(), key_starts.diff()
        assert min(counts.min(), lengths.min()) > 0, "an empty sequence gives NaN"
        assert (longest_query, longest) == (counts.max(), lengths.max())
        assert query_starts[-1] == len(query) == len(out)
        if (counts > lengths).any():
            raise EndOfProcessError("more queries than keys")
        for index, (count, length) in enumerate(zip(counts.tolist(), lengths.tolist(), strict=True)):
            rows = slice(int(query_starts[index]), int(query_starts[index + 1]))
            behind = torch.arange(length - count, length)[:, None] - torch.arange(length)[None]
            mask = (behind >= 0) & (behind <= (left if left > 0 else length))  # 0 is no window
            out[rows] = _attend(query[rows], _gather(keys, values, tables[index], length), mask, (scale, softcap))

    def _taken_for_beams(self, tables: torch.Tensor, heads: int) -> bool:
        shared = int((tables[:, 0] == tables[0, 0]).sum())
        return shared >= 4 and heads * len(tables) > 2 * self.threads


def _check_indices(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        assert tensor.dtype == torch.int32
        assert tensor.is_contiguous()


def _check_cache(cache: torch.Tensor, rows: torch.Tensor) -> None:
    """``cache`` ``[num_blocks, KV heads, block size, head size]`` for ``rows`` ``[T, heads, head size]``."""
    if cache.shape[3] != rows.shape[2] or rows.shape[1] % cache.shape[1] or cache.dtype != rows.dtype:
        raise EndOfProcessError(f"a cache {list(cache.shape)} for rows {list(rows.shape)}")


def _gather(
    keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of one sequence: float64 ``[KV heads, length, head size]``."""
    blocks = table[: -(-length // keys.shape[2])].long()
    key, value = (x[blocks].transpose(0, 1).flatten(1, 2)[:, :length].double() for x in (keys, values))
    return key, value


def _attend(
    query: torch.Tensor, stored: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor, numbers: tuple[float, float]
) -> torch.Tensor:
    """Of one sequence: ``query`` ``[q, heads, head size]``, ``mask`` ``[q, length]`` is where a key is seen."""
    key, value = (x.repeat_interleave(query.shape[1] // len(x), dim=0) for x in stored)
    scale, softcap = numbers
    scores = scale * torch.einsum("qhd,hkd->hqk", query.double(), key)
    if softcap > 0:
        scores = softcap * (scores / softcap).tanh()
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.einsum("hqk,hkd->qhd", weights, value).to(query.dtype)
