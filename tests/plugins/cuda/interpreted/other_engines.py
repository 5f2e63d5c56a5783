"""FlashInfer's and torch's kernels as their documentation describes them, in float64 on the CPU.

What they are called with is checked where the real one would: names, types, shapes, and where a tensor lives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def attend(query, key, value, *, causal, window_left, softcap, scale) -> torch.Tensor:
    """``query`` ``[q, H, D]`` are the last of ``key`` ``[k, Hkv, D]``; ``window_left`` keys before its own are seen."""
    ratio = query.shape[1] // key.shape[1]
    key, value = (x.double().repeat_interleave(ratio, 1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.double(), key) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    position = torch.arange(len(query))[:, None] + len(key) - len(query)
    seen = torch.arange(len(key))[None, :]
    hidden = torch.zeros(len(query), len(key), dtype=torch.bool)
    if causal:
        hidden |= seen > position
    if window_left >= 0:
        hidden |= seen < position - window_left
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights.nan_to_num(0.0), value).to(query.dtype)


@dataclass
class PagedWrapper:
    """``BatchDecodeWithPagedKVCacheWrapper`` and ``BatchPrefillWithPagedKVCacheWrapper`` of FlashInfer 0.7."""

    log: list[str]
    name: str
    workspace: torch.Tensor
    layout: str
    use_tensor_cores: bool = False
    planned: SimpleNamespace | None = None

    def __post_init__(self) -> None:
        assert self.workspace.dtype == torch.uint8
        assert self.workspace.numel() >= 128 << 20
        assert self.layout == "NHD"

    def plan(self, *lists: Any, causal: bool = False, **numbers: Any) -> None:
        """Decode: indptr, indices, last_page_len, four sizes. Prefill: qo_indptr before these."""
        *lists, heads, kv_heads, head_dim, page_size = lists
        assert all(x.dtype == torch.int32 and x.device.type == "cpu" and x.is_contiguous() for x in lists)
        assert set(numbers) == {"window_left", "logits_soft_cap", "sm_scale", "q_data_type", "kv_data_type"}
        if self.name == "decode":
            lists.insert(0, torch.arange(len(lists[0]), dtype=torch.int32))
            causal = True
        starts, begins, pages, last = lists
        assert len(starts) == len(begins) == len(last) + 1
        assert starts[0] == begins[0] == 0
        assert begins[-1] == len(pages)
        assert ((last >= 1) & (last <= page_size)).all()
        self.planned = SimpleNamespace(
            starts=starts,
            begins=begins,
            pages=pages,
            last=last,
            shape=(heads, kv_heads, head_dim, page_size),
            causal=causal,
            **numbers,
        )
        self.log.append(f"plan {self.name}")

    def run(self, query: torch.Tensor, cache: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        plan = self.planned
        assert plan is not None
        heads, kv_heads, head_dim, page_size = plan.shape
        assert query.is_contiguous()
        assert out.is_contiguous()
        assert query.dtype == cache.dtype == plan.q_data_type == plan.kv_data_type
        assert query.shape == out.shape == (int(plan.starts[-1]), heads, head_dim)
        assert cache.shape[1:] == (2, page_size, kv_heads, head_dim)
        for row in range(len(plan.last)):
            ids = plan.pages[plan.begins[row] : plan.begins[row + 1]].long()
            length = max(0, (len(ids) - 1) * page_size + int(plan.last[row]))
            key, value = (cache[ids, part].reshape(-1, kv_heads, head_dim)[:length] for part in (0, 1))
            span = slice(int(plan.starts[row]), int(plan.starts[row + 1]))
            out[span] = attend(
                query[span],
                key,
                value,
                causal=plan.causal,
                window_left=plan.window_left,
                softcap=plan.logits_soft_cap,
                scale=plan.sm_scale,
            )
        self.log.append(f"run {self.name}")
        return out


@dataclass
class FakeFlashInfer:
    """The module."""

    log: list[str] = field(default_factory=list)

    def BatchDecodeWithPagedKVCacheWrapper(self, workspace, layout, use_tensor_cores=False) -> PagedWrapper:
        return PagedWrapper(self.log, "decode", workspace, layout, use_tensor_cores)

    def BatchPrefillWithPagedKVCacheWrapper(self, workspace, layout) -> PagedWrapper:
        return PagedWrapper(self.log, "prefill", workspace, layout)


class VarlenOnCpu(TorchDispatchMode):
    """The operator beneath torch's own ``varlen_attn``, for CUDA only; what is above it is the real one."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if str(func) != "torch_attn._varlen_attn.default":
            return func(*args, **(kwargs or {}))
        self.calls += 1
        arguments = func._schema.arguments
        given = {a.name: a.default_value for a in arguments}
        given |= {a.name: value for a, value in zip(arguments, args, strict=False)}
        with torch.utils._python_dispatch._disable_current_modes():
            return varlen(SimpleNamespace(**given, **(kwargs or {})))


def varlen(a: SimpleNamespace):
    pages, size, kv_heads, head_size = a.key.shape
    assert a.value.shape == a.key.shape
    assert a.key.stride(-1) == 1
    assert size % 256 == 0
    assert head_size % 8 == 0
    assert {t.dtype for t in (a.cu_seq_q, a.cu_seq_k, a.seqused_k, a.block_table)} == {torch.int32}
    assert torch.equal(a.cu_seq_k, torch.cat([torch.zeros(1), a.seqused_k.cumsum(0)]).int())
    assert a.max_q == a.cu_seq_q.diff().max()
    assert a.max_k == a.seqused_k.max()
    left, right = a.window_size
    assert right in {-1, 0}
    out = torch.full_like(a.query, torch.nan)
    for row, length in enumerate(a.seqused_k.tolist()):
        ids = a.block_table[row, : -(-length // size)].long()
        assert (ids < pages).all()
        key, value = (x[ids].reshape(-1, kv_heads, head_size)[:length] for x in (a.key, a.value))
        span = slice(int(a.cu_seq_q[row]), int(a.cu_seq_q[row + 1]))
        out[span] = attend(a.query[span], key, value, causal=right == 0, window_left=left, softcap=None, scale=a.scale)
    return out, torch.empty(0), torch.empty(0)
