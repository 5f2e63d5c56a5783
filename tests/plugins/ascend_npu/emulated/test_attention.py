"""Attention against the float64 oracle, and by which way each layer is computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from baseboard_ascend_npu.backend import AscendBackend
from baseboard_ascend_npu.kernels import FusedKernel, GatherKernel, PagedDecodeKernel
from baseboard_ascend_standin.emulator.calls import Chip
from baseboard_ascend_standin.emulator.dispatch import EmulatedNpu
from baseboard_ascend_standin.library import StandIn
from core.backends.world import POISONS
from plugins.ascend_npu.emulated.npu_world import NpuWorld, Row, make_world
from plugins.ascend_npu.emulated.opened import open_backend

#: Decodes first: lengths around the edges of blocks of 16, a chunk that goes on, one of a single token, a whole prompt.
MIXED = [Row(1, 1), Row(1, 15), Row(1, 16), Row(1, 17), Row(1, 33), Row(7, 20), Row(1, 31), Row(33, 33)]
SINKS = (0.5, -1.0, 2.0, 0.0)

FUSED, PAGED, GATHER = FusedKernel, PagedDecodeKernel, GatherKernel
WAYS: list[tuple[type, dict[str, Any]]] = [
    (FUSED, {"head_size": 128}),
    (FUSED, {"head_size": 64, "heads": (4, 4)}),
    (FUSED, {"head_size": 128, "heads": (8, 1)}),
    (FUSED, {"sliding_window": 1}),
    (FUSED, {"sliding_window": 16}),
    (PAGED, {"head_size": 64}),
    (PAGED, {"head_size": 80, "heads": (9, 3)}),
    (PAGED, {"head_size": 256}),
    (PAGED, {"head_size": 64, "head_size_v": 32}),
    (GATHER, {"head_size": 320}),
    (GATHER, {"head_size": 64, "sliding_window": 5}),
    (GATHER, {"head_size": 96, "sinks": SINKS, "sliding_window": 16}),
]


def decodes(rows: list[Row]) -> int:
    return next((index for index, row in enumerate(rows) if row.query_len > 1), len(rows))


def world(rows: list[Row] = MIXED, **options: Any) -> NpuWorld:
    return make_world(rows, num_decodes=decodes(rows), **options)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("way", "options"), WAYS)
def test_mixed_steps(backend: AscendBackend, way: type, options: dict[str, Any], dtype: str) -> None:
    made = world(dtype=dtype, **options)
    assert backend.unsupported(made.kv, made.spec) == []
    assert type(backend.attention_kernel(made.spec, made.kv)) is way
    made.check(made.run(backend))


def test_sinks_go_to_the_second_version_in_its_own_dtype_only(backend: AscendBackend, npu: EmulatedNpu) -> None:
    for dtype, operator in (("bfloat16", "npu::npu_fused_infer_attention_score_v2"), ("float16", None)):
        npu.log.clear()
        made = world(dtype=dtype, sinks=SINKS)
        made.check(made.run(backend))
        assert {name for name in npu.log if "attention" in name} == ({operator} if operator else set())


def test_sinks_in_a_window(backend: AscendBackend) -> None:
    made = world(sinks=SINKS, sliding_window=9)
    assert type(backend.attention_kernel(made.spec, made.kv)) is FUSED
    made.check(made.run(backend))


@pytest.mark.parametrize(("way", "options"), WAYS)
def test_every_query_sees_all_keys_where_the_step_is_not_causal(
    backend: AscendBackend, way: type, options: dict[str, Any]
) -> None:
    made = world(causal=False, **options)
    made.check(made.run(backend))


@pytest.mark.parametrize("block_size", [16, 48, 128, 1024])
@pytest.mark.parametrize("head_size", [128, 64])
def test_block_sizes(backend: AscendBackend, block_size: int, head_size: int) -> None:
    made = world(block_size=block_size, head_size=head_size)
    assert isinstance(backend.attention_kernel(made.spec, made.kv), PAGED) == (head_size == 64 and block_size <= 128)
    made.check(made.run(backend))


@pytest.mark.parametrize("options", [WAYS[0][1], WAYS[5][1], WAYS[9][1]])
@pytest.mark.parametrize("rows", [MIXED[:5], MIXED[5:], [Row(40, 40)], [Row(1, 1)], [Row(8, 40), Row(8, 40)]])
def test_kinds_of_steps(backend: AscendBackend, options: dict[str, Any], rows: list[Row]) -> None:
    made = world(rows, **options)
    made.check(made.run(backend))


@pytest.mark.parametrize("options", [WAYS[0][1], WAYS[3][1], WAYS[5][1], WAYS[10][1]])
def test_what_nobody_owns_reaches_no_result(backend: AscendBackend, options: dict[str, Any]) -> None:
    made = world(**options)
    results = [made.run(backend, poison) for poison in POISONS]
    made.check(results[0])
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("options", [WAYS[0][1], WAYS[5][1], WAYS[9][1]])
def test_padding_of_any_length_stays_in_the_null_block(backend: AscendBackend, options: dict[str, Any]) -> None:
    rows = [Row(1, 9), Row(1, 30), *[Row(1, 1, padding=True)] * 6, Row(5, 12), Row(40, 40, padding=True)]
    made = make_world(rows, num_decodes=8, **options)
    cache = made.poisoned_cache(backend, 0.0)
    before = [plane.cpu() for plane in cache.planes]
    made.check(made.step(backend, cache))
    own = sorted(
        {int(block) for row, table in zip(rows, made.tables, strict=True) if not row.padding for block in table}
    )
    others = [block for block in range(1, cache.num_blocks) if block not in own]
    for plane, old in zip(cache.planes, before, strict=True):
        assert torch.equal(plane.cpu()[others], old[others])


def test_shared_prefix_blocks(backend: AscendBackend) -> None:
    rows = [Row(1, 40), Row(1, 33), Row(6, 50)]
    made = make_world(rows, num_decodes=2, shared_blocks=2)
    made.check(made.run(backend))


def test_a_step_without_tokens(backend: AscendBackend) -> None:
    for options in (WAYS[0][1], WAYS[5][1], WAYS[9][1]):
        made = world([], **options)
        cache = backend.allocate_kv_cache(made.kv, 3)
        kernel = backend.attention_kernel(made.spec, made.kv)
        metadata = backend.build_attention_metadata(made.batch(), cache)
        nothing = torch.empty(0, made.spec.num_heads, made.spec.head_size, dtype=torch.bfloat16, device="npu")
        kernel.write(nothing[:, :2], nothing[:, :2], cache.layer(0), metadata)
        assert kernel.attend(nothing, cache.layer(0), metadata).shape == nothing.shape


def test_strided_rows_as_slices_of_a_fused_projection_give(backend: AscendBackend) -> None:
    made = world()
    cache = made.poisoned_cache(backend, 0.0)
    kernel = backend.attention_kernel(made.spec, made.kv)
    metadata = backend.build_attention_metadata(made.batch(), cache)
    together = torch.cat([torch.cat(made.query), made._new(made.key), made._new(made.value)], dim=1).to("npu")
    query, key, value = together.split([4, 2, 2], dim=1)
    assert not query.is_contiguous()
    kernel.write(key, value, cache.layer(0), metadata)
    made.check(kernel.attend(query, cache.layer(0), metadata).cpu())


@pytest.mark.parametrize("options", [WAYS[5][1], WAYS[9][1]])
def test_an_output_tensor_is_used_where_one_is_given(backend: AscendBackend, options: dict[str, Any]) -> None:
    made = world(**options)
    out = torch.full((sum(r.query_len for r in MIXED), 4, made.kv.head_size_v), torch.nan, dtype=torch.bfloat16).to(
        "npu"
    )
    made.check(made.run(backend, out=out))
    made.check(out.cpu())


@pytest.mark.parametrize("excludes_self", [True, False])
def test_the_meaning_of_a_band_is_measured(npu: EmulatedNpu, excludes_self: bool) -> None:
    npu.chip = Chip(npu.chip.soc, band_excludes_self=excludes_self)
    backend = open_backend()
    for window in (1, 7, 16):
        made = world(sliding_window=window)
        assert type(backend.attention_kernel(made.spec, made.kv)) is FUSED
        made.check(made.run(backend))
    backend.close()


def test_a_band_that_means_neither_is_not_used(backend: AscendBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    import baseboard_ascend_standin.emulator.fused as emulated

    monkeypatch.setattr(
        emulated, "_hidden", lambda call, queries, length: torch.zeros(queries, length, dtype=torch.bool)
    )
    made = world(sliding_window=7)
    assert type(backend.attention_kernel(made.spec, made.kv)) is GATHER


def test_shared_heads_of_64_are_fused_once_the_user_says_that_the_chip_can(npu: EmulatedNpu) -> None:
    npu.chip = Chip(npu.chip.soc, gqa_64=True)
    backend = open_backend(gqa_64="yes")
    made = world(head_size=64)
    assert type(backend.attention_kernel(made.spec, made.kv)) is FUSED
    made.check(made.run(backend))
    backend.close()


def test_without_the_paged_operator_decodes_are_gathered(npu: EmulatedNpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baseboard_ascend_npu.operators._has_nnal", lambda: False)
    backend = open_backend()
    made = world(head_size=64)
    assert type(backend.attention_kernel(made.spec, made.kv)) is GATHER
    made.check(made.run(backend))
    backend.close()


@pytest.mark.parametrize("options", [WAYS[0][1], WAYS[5][1], WAYS[9][1], {"sinks": SINKS, "sliding_window": 9}])
def test_a_device_that_lags_behind(backend: AscendBackend, standin: StandIn, options: dict[str, Any]) -> None:
    made = world(**options)
    with standin.late():
        made.check(made.run(backend))


def test_long_prompts_are_gathered_in_parts(backend: AscendBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baseboard_ascend_npu.gathering._PAIRS", 100)
    monkeypatch.setattr("baseboard_ascend_npu.gathering._DECODE_KEYS", 40)
    made = world(head_size=96, sliding_window=20)
    made.check(made.run(backend))
    metadata: Any = backend.build_attention_metadata(made.batch(), backend.allocate_kv_cache(made.kv, made.num_blocks))
    from baseboard_ascend_npu.gathering import Selection

    groups = metadata.groups(Selection(0, 20))
    assert len(groups) > len(MIXED) - decodes(MIXED) + 1
    covered = sorted(row for group in groups for row in range(group.rows.start, group.rows.stop))
    assert covered == list(range(sum(row.query_len for row in MIXED)))
