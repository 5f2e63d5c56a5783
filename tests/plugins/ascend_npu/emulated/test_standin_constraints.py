"""The stand-in refuses what the operators' documents forbid: one wrong argument at a time, everything else right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from baseboard_ascend_standin.emulator import fused
from baseboard_ascend_standin.emulator.calls import Chip
from baseboard_ascend_standin.emulator.constraints import ConstraintViolation
from baseboard_ascend_standin.emulator.dispatch import EmulatedNpu

BF16 = torch.bfloat16
Change = Callable[[dict[str, Any]], dict[str, Any]]


def npu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("npu")


def ints(values: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return npu(torch.tensor(values, dtype=dtype))


def zeros(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return npu(torch.zeros(shape, dtype=dtype))


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in every second place."""
    wide = torch.stack([tensor.cpu(), tensor.cpu()], -1).to("npu")
    return wide[..., 0]


def mask() -> torch.Tensor:
    return npu(torch.ones(2048, 2048, dtype=torch.int8).triu(1))


def fused_call() -> dict[str, Any]:
    """Two sequences, 1 and 3 tokens new of 5 and 20; 4 heads on 2, blocks of 16."""
    return {
        "query": zeros(4, 4, 128),
        "key": zeros(5, 16, 256),
        "value": zeros(5, 16, 256),
        "atten_mask": mask(),
        "block_table": ints([[1, 0], [2, 3]]),
        "actual_seq_lengths": [1, 4],
        "actual_seq_lengths_kv": [5, 20],
        "num_heads": 4,
        "num_key_value_heads": 2,
        "input_layout": "TND",
        "sparse_mode": 3,
        "block_size": 16,
    }


def call_fused(arguments: dict[str, Any]) -> Any:
    rest = dict(arguments)
    query, key, value = rest.pop("query"), rest.pop("key"), rest.pop("value")
    if "learnable_sink" not in rest:
        return torch.ops.npu.npu_fused_infer_attention_score.default(query, key, value, **rest)
    for old, new in (
        ("actual_seq_lengths", "actual_seq_qlen"),
        ("actual_seq_lengths_kv", "actual_seq_kvlen"),
        ("num_heads", "num_query_heads"),
    ):
        rest[new] = rest.pop(old)
    return torch.ops.npu.npu_fused_infer_attention_score_v2.default(query, key, value, **rest)


FUSED: list[tuple[str, dict[str, Any] | Change]] = [
    ("layout", {"input_layout": "BSH"}),
    ("arguments", lambda _: {"pse_shift": zeros(1)}),
    ("dtype", lambda c: {"query": c["query"].float()}),
    ("dtype", lambda c: {"value": c["value"].half()}),
    ("query.contiguous", lambda c: {"query": strided(c["query"])}),
    ("key.contiguous", lambda c: {"key": strided(c["key"])}),
    ("block_table.contiguous", lambda c: {"block_table": strided(c["block_table"])}),
    ("block_table.device", lambda c: {"block_table": c["block_table"].cpu()}),
    ("atten_mask.device", lambda c: {"atten_mask": c["atten_mask"].cpu()}),
    ("inner_precise", {"inner_precise": 1}),
    ("query.heads", {"num_heads": 2}),
    ("heads.number", lambda _: {"query": zeros(4, 258, 128), "num_heads": 258}),
    ("heads.shared", {"num_key_value_heads": 3}),
    ("heads.ratio", lambda _: {"query": zeros(4, 130, 128), "num_heads": 130}),
    ("head_size", lambda _: {"query": zeros(4, 4, 64), "key": zeros(5, 16, 128), "value": zeros(5, 16, 128)}),
    ("head_size", lambda _: {"query": zeros(4, 4, 80), "key": zeros(5, 16, 160), "value": zeros(5, 16, 160)}),
    ("block_size", {"block_size": 0}),
    ("block_size", {"block_size": 24}),
    ("block_size", {"block_size": 1040}),
    ("cache.shape", {"block_size": 32}),
    ("cache.shape", lambda c: {"key": c["key"].view(5, 16, 2, 128)}),
    ("cache.alike", lambda _: {"value": zeros(6, 16, 256)}),
    ("query_ends.given", {"actual_seq_lengths": None}),
    ("lengths.given", {"actual_seq_lengths_kv": None}),
    (
        "query_ends.number",
        lambda _: {
            "query": zeros(4097, 4, 128),
            "actual_seq_lengths": list(range(1, 4098)),
            "actual_seq_lengths_kv": [1] * 4097,
        },
    ),
    ("lengths.number", {"actual_seq_lengths": [0, 1, 4]}),
    ("query_ends.cumulative", {"actual_seq_lengths": [5, 4]}),
    ("query_ends.total", {"actual_seq_lengths": [1, 3]}),
    ("lengths.negative", {"actual_seq_lengths_kv": [-1, 20]}),
    ("lengths.causal", {"actual_seq_lengths_kv": [5, 2]}),
    ("table.given", {"block_table": None}),
    ("table.dtype", lambda c: {"block_table": c["block_table"].long()}),
    ("table.rank", lambda c: {"block_table": c["block_table"][None]}),
    ("table.rows", lambda _: {"block_table": ints([[1, 0], [2, 3], [0, 0]])}),
    ("table.columns", {"actual_seq_lengths_kv": [5, 33]}),
    ("table.ids", lambda _: {"block_table": ints([[5, 0], [2, 3]])}),
    ("table.ids", lambda _: {"block_table": ints([[1, 0], [-1, 3]])}),
    ("sparse_mode", {"sparse_mode": 2}),
    ("mask.none", {"sparse_mode": 0}),
    ("mask.given", {"atten_mask": None}),
    ("mask.shape", lambda _: {"atten_mask": zeros(4, 20, dtype=torch.int8)}),
    ("mask.dtype", lambda c: {"atten_mask": c["atten_mask"].to(BF16)}),
    ("mask.triangle", lambda c: {"atten_mask": 1 - c["atten_mask"]}),
    ("band", {"sparse_mode": 4, "pre_tokens": 2, "next_tokens": -3}),
    ("sinks.dtype", lambda _: {"learnable_sink": zeros(4, dtype=torch.float32)}),
    ("sinks.shape", lambda _: {"learnable_sink": zeros(2)}),
    ("sinks.device", lambda _: {"learnable_sink": torch.zeros(4, dtype=BF16)}),
]


def test_the_right_calls_pass(npu: EmulatedNpu) -> None:
    call_fused(fused_call())
    call_fused(fused_call() | {"learnable_sink": zeros(4)})
    call_fused(fused_call() | {"sparse_mode": 4, "pre_tokens": 2, "next_tokens": 0})
    call_fused(fused_call() | {"sparse_mode": 0, "atten_mask": None})
    call_scatter(scatter_call())
    call_paged(paged_call())


@pytest.mark.parametrize(("constraint", "change"), FUSED)
def test_fused(constraint: str, change: dict[str, Any] | Change) -> None:
    good = fused_call()
    refused(f"fused.{constraint}", call_fused, good | (change if isinstance(change, dict) else change(good)))


def refused(constraint: str, call: Callable[[dict[str, Any]], Any], arguments: dict[str, Any]) -> None:
    with pytest.raises(ConstraintViolation) as violation:
        call(arguments)
    assert violation.value.constraint == constraint


def test_a_cache_too_large_to_count() -> None:
    for shape, constraint in (((2**18, 16, 512), "fused.cache.elements"), ((2, 16, 65_536), "fused.cache.row")):
        cache = torch.empty(shape, dtype=BF16, device="meta")
        heads = shape[2] // 128
        call = fused.Fused(
            query=torch.empty(1, heads, 128, dtype=BF16, device="meta"), key=cache, value=cache, mask=None,
            table=torch.empty(0), query_ends=[1], lengths=[1], heads=heads, kv_heads=heads, scale=1.0, sparse_mode=0,
            pre_tokens=0, next_tokens=0, block_size=16, sinks=None, chip=Chip(),
        )  # fmt: skip
        with pytest.raises(ConstraintViolation) as violation:
            fused._check_cache(call)
        assert violation.value.constraint == constraint


def scatter_call() -> dict[str, Any]:
    return {
        "key": zeros(3, 2, 64),
        "value": zeros(3, 2, 32),
        "key_cache": zeros(2, 16, 2, 64),
        "value_cache": zeros(2, 16, 2, 32),
        "slot_mapping": ints([16, 3, 17]),
        "cache_mode": "Norm",
    }


def call_scatter(arguments: dict[str, Any]) -> Any:
    rest = dict(arguments)
    places = [rest.pop(name) for name in ("key", "value", "key_cache", "value_cache", "slot_mapping")]
    return torch.ops.npu.npu_scatter_pa_kv_cache.default(*places, **rest)


SCATTER: list[tuple[str, Change]] = [
    ("mode", lambda _: {"cache_mode": "PA_NZ"}),
    ("key.contiguous", lambda c: {"key": strided(c["key"])}),
    ("value_cache.contiguous", lambda c: {"value_cache": strided(c["value_cache"])}),
    ("slot_mapping.device", lambda c: {"slot_mapping": c["slot_mapping"].cpu()}),
    ("dtype", lambda c: {"value": c["value"].half()}),
    ("key.rank", lambda c: {"key": c["key"][None], "value": c["value"][None]}),
    ("key.alike", lambda _: {"value": zeros(4, 2, 32)}),
    ("key_cache.shape", lambda _: {"key_cache": zeros(2, 16, 64, 2)}),
    ("slots.dtype", lambda c: {"slot_mapping": c["slot_mapping"].to(torch.int16)}),
    ("slots.shape", lambda _: {"slot_mapping": ints([16, 3])}),
    ("slots.range", lambda _: {"slot_mapping": ints([16, 3, 32])}),
    ("slots.range", lambda _: {"slot_mapping": ints([16, 3, -1])}),
    ("slots.unique", lambda _: {"slot_mapping": ints([16, 3, 16])}),
]


@pytest.mark.parametrize(("constraint", "change"), SCATTER)
def test_scatter(constraint: str, change: Change) -> None:
    good = scatter_call()
    refused(f"scatter.{constraint}", call_scatter, good | change(good))


def test_scatter_left_to_its_own_default_is_the_other_layout() -> None:
    arguments = scatter_call()
    del arguments["cache_mode"]
    refused("scatter.mode", call_scatter, arguments)


def paged_call() -> dict[str, Any]:
    return {
        "query": zeros(2, 4, 64),
        "key_cache": zeros(5, 16, 2, 64),
        "value_cache": zeros(5, 16, 2, 32),
        "num_kv_heads": 2,
        "num_heads": 4,
        "scale_value": 1.0,
        "block_table": ints([[1, 0], [2, 3]]),
        "context_lens": torch.tensor([5, 20], dtype=torch.int32),
        "out": zeros(2, 4, 32),
    }


def call_paged(arguments: dict[str, Any]) -> Any:
    return torch.ops.atb._npu_paged_attention.default(*arguments.values())


PAGED: list[tuple[str, Change]] = [
    ("query.contiguous", lambda c: {"query": strided(c["query"])}),
    ("out.contiguous", lambda c: {"out": strided(c["out"])}),
    ("block_table.device", lambda c: {"block_table": c["block_table"].cpu()}),
    ("dtype", lambda c: {"out": c["out"].float()}),
    ("query.shape", lambda _: {"num_heads": 2}),
    ("heads", lambda c: {"num_kv_heads": 3}),
    ("cache.shape", lambda c: {"key_cache": c["key_cache"].flatten(2)}),
    ("block_size", lambda _: {"key_cache": zeros(5, 144, 2, 64), "value_cache": zeros(5, 144, 2, 32)}),
    ("head_size", lambda _: {"value_cache": zeros(5, 16, 2, 272)}),
    ("cache.alike", lambda _: {"value_cache": zeros(4, 16, 2, 32)}),
    ("query.head_size", lambda _: {"query": zeros(2, 4, 32)}),
    ("out.shape", lambda _: {"out": zeros(2, 4, 64)}),
    ("table.dtype", lambda c: {"block_table": c["block_table"].long()}),
    ("table.rows", lambda _: {"block_table": ints([[1, 0]])}),
    ("lengths.dtype", lambda c: {"context_lens": c["context_lens"].long()}),
    ("lengths.host", lambda c: {"context_lens": npu(c["context_lens"])}),
    ("lengths.number", lambda c: {"context_lens": c["context_lens"][:1]}),
    ("lengths.range", lambda _: {"context_lens": torch.tensor([5, 33], dtype=torch.int32)}),
    ("lengths.range", lambda _: {"context_lens": torch.tensor([0, 20], dtype=torch.int32)}),
    ("table.ids", lambda _: {"block_table": ints([[1, 5], [2, 3]])}),
]


@pytest.mark.parametrize(("constraint", "change"), PAGED)
def test_paged(constraint: str, change: Change) -> None:
    good = paged_call()
    refused(f"paged.{constraint}", call_paged, good | change(good))


def test_chips_that_the_operators_are_not_documented_for(npu: EmulatedNpu) -> None:
    npu.chip = Chip("Ascend310P3")
    refused("fused.chip", call_fused, fused_call())
    refused("scatter.chip", call_scatter, scatter_call())
    refused("paged.chip", call_paged, paged_call())


def test_norms_and_the_like() -> None:
    ops = torch.ops.npu
    for constraint, call in (
        ("rms_norm.rank", lambda: ops.npu_rms_norm.default(zeros(4), zeros(4), 1e-6)),
        ("rms_norm.dtype", lambda: ops.npu_rms_norm.default(ints([[1]]), ints([1]), 1e-6)),
        ("rms_norm.gamma.dtype", lambda: ops.npu_rms_norm.default(zeros(2, 4), zeros(4).float(), 1e-6)),
        ("rms_norm.gamma.shape", lambda: ops.npu_rms_norm.default(zeros(2, 4), zeros(2), 1e-6)),
        ("rms_norm.alike", lambda: ops.npu_add_rms_norm.default(zeros(2, 4), zeros(4, 4), zeros(4), 1e-6)),
        ("swiglu.even", lambda: ops.npu_swiglu.default(zeros(3, 5))),
        ("mrope.rotary_dim", lambda: call_mrope(zeros(8, 24))),
        ("mrope.positions.range", lambda: call_mrope(zeros(3, 32))),
        ("mrope.dtype", lambda: call_mrope(zeros(8, 32).float())),
        ("top_k_top_p.k.dtype", lambda: ops.npu_top_k_top_p.default(zeros(1, 9), zeros(1), ints([3]).long())),
        ("top_k_top_p.k.range", lambda: ops.npu_top_k_top_p.default(zeros(1, 9), zeros(1), ints([0]))),
    ):
        with pytest.raises(ConstraintViolation) as violation:
            call()
        assert violation.value.constraint == constraint


def call_mrope(table: torch.Tensor) -> Any:
    return torch.ops.npu.npu_mrope.default(
        ints([3], torch.int64), zeros(1, 64), zeros(1, 64), table, 32, mrope_section=[0, 0, 0]
    )


def test_an_operator_without_emulation_is_not_passed_over() -> None:
    with pytest.raises(NotImplementedError, match="npu_gelu"):
        torch.ops.npu.npu_gelu.default(zeros(4))
