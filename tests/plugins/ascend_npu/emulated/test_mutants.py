"""Plugins that break one rule each: the stand-in catches every one, by the rule's name or by a wrong result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from baseboard_ascend_npu import backend as backend_module
from baseboard_ascend_npu import factory, fused, kernels, limits, metadata, support
from baseboard_ascend_npu.backend import AscendBackend
from baseboard_ascend_standin.emulator.constraints import ConstraintViolation
from plugins.ascend_npu.emulated.npu_world import NpuWorld, Row, make_world

Patch = pytest.MonkeyPatch
Mutation = Callable[[Patch, AscendBackend], None]

ROWS = [Row(1, 9), Row(1, 33), Row(5, 20)]
PADDED = [Row(1, 9), Row(1, 1, padding=True), Row(1, 1, padding=True), Row(5, 20)]


def metadata_of(change: Callable[[Any], None]) -> Mutation:
    """The plugin with other metadata."""

    def mutate(patch: Patch, backend: AscendBackend) -> None:
        class Changed(metadata.StepMetadata):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                change(self)

        patch.setattr(backend_module, "StepMetadata", Changed)

    return mutate


def called(operator: str, change: Callable[[list[Any], dict[str, Any]], None]) -> Mutation:
    """The plugin with another call of ``operator``."""

    def mutate(patch: Patch, backend: AscendBackend) -> None:
        real = getattr(backend.kernels.operators, operator)

        def call(*args: Any, **options: Any) -> Any:
            given = list(args)
            change(given, options)
            return real(*given, **options)

        patch.setattr(backend.kernels, "operators", replace(backend.kernels.operators, **{operator: call}))

    return mutate


def option(operator: str, name: str, value: Any) -> Mutation:
    return called(operator, lambda _, options: options.update({name: value}))


def without(operator: str, name: str) -> Mutation:
    return called(operator, lambda _, options: options.pop(name))


def argument(operator: str, place: int, change: Callable[[torch.Tensor], Any]) -> Mutation:
    return called(operator, lambda args, _: args.__setitem__(place, change(args[place])))


def way(chosen: support.Way) -> Mutation:
    """The plugin that computes every layer one way, and refuses none."""

    def mutate(patch: Patch, backend: AscendBackend) -> None:
        patch.setattr(backend_module, "choose_way", lambda *_: chosen)
        patch.setattr(backend_module, "reasons_against", lambda *_: [])

    return mutate


def mask(made: Callable[[torch.Tensor], torch.Tensor]) -> Mutation:
    real = fused.compressed_mask
    return lambda patch, _: patch.setattr(factory, "compressed_mask", lambda device: made(real(device)))


def every_second(tensor: torch.Tensor) -> torch.Tensor:
    return torch.stack([tensor, tensor], -1)[..., 0]


def keep_all_padding(patch: Patch, _: AscendBackend) -> None:
    patch.setattr(metadata, "_first_of_each", lambda slots, block_size: np.arange(len(slots)))


def skip_null_block(patch: Patch, _: AscendBackend) -> None:
    real = metadata._first_of_each

    def negative(slots: Any, block_size: int) -> Any:
        slots[slots < block_size] = -1
        return real(slots, block_size)

    patch.setattr(metadata, "_first_of_each", negative)


def float32_sinks(patch: Patch, backend: AscendBackend) -> None:
    called("fused_with_sinks", lambda _, o: o.update(learnable_sink=o["learnable_sink"].float()))(patch, backend)


def no_sequence_limit(patch: Patch, _: AscendBackend) -> None:
    patch.setattr(metadata, "MAX_SEQUENCES", 10**6)


def no_contiguous_query(patch: Patch, _: AscendBackend) -> None:
    straight = kernels.FusedKernel._attend
    patch.setattr(
        kernels.FusedKernel, "attend", lambda self, query, layer, step: straight(self, query, layer, step, None)
    )


def wrong_band(patch: Patch, backend: AscendBackend) -> None:
    patch.setattr(factory, "measure_band", lambda *_: 0)


MUTANTS: list[tuple[str, Mutation, dict[str, Any]]] = [
    # 1.2, lengths
    ("fused.lengths.number", metadata_of(lambda m: m.query_ends.insert(0, 0)), {}),
    ("fused.query_ends.cumulative", metadata_of(lambda m: m.query_ends.__setitem__(slice(None), [9, 1, 7])), {}),
    ("fused.query_ends.total", metadata_of(lambda m: m.query_ends.__setitem__(-1, m.query_ends[-1] - 1)), {}),
    ("fused.table.columns", metadata_of(lambda m: m.lengths.__setitem__(slice(None), [9, 42, 62])), {}),
    ("fused.lengths.given", option("fused", "actual_seq_lengths_kv", None), {}),
    ("fused.query_ends.number", no_sequence_limit, {"rows": [Row(1, 1)] * 4097, "head_size": 128, "heads": (1, 1)}),
    # 1.2, tables and caches
    ("fused.table.dtype", metadata_of(lambda m: setattr(m, "tables", m.tables.long())), {}),
    ("fused.block_table.contiguous", metadata_of(lambda m: setattr(m, "tables", every_second(m.tables))), {}),
    ("fused.table.rows", metadata_of(lambda m: setattr(m, "tables", m.tables.repeat(2, 1))), {}),
    ("fused.table.ids", metadata_of(lambda m: m.tables.add_(100)), {}),
    ("fused.cache.shape", argument("fused", 1, lambda key: key.unflatten(2, (2, 128))), {}),
    ("fused.cache.shape", option("fused", "block_size", 32), {}),
    ("fused.block_size", without("fused", "block_size"), {}),
    # 1.2, layout, heads and types
    ("fused.layout", without("fused", "input_layout"), {}),
    ("fused.query.contiguous", no_contiguous_query, {"strided": True}),
    ("fused.query.contiguous", argument("fused", 0, every_second), {}),
    ("fused.dtype", argument("fused", 0, lambda q: q.float()), {}),
    ("fused.inner_precise", option("fused", "inner_precise", 1), {}),
    ("fused.head_size", way(support.Way.FUSED), {"head_size": 64}),
    ("fused.head_size", way(support.Way.FUSED), {"head_size": 80, "heads": (4, 4)}),
    ("fused.heads.ratio", way(support.Way.FUSED), {"heads": (65, 1)}),
    ("fused.heads.number", way(support.Way.FUSED), {"heads": (258, 6)}),
    # 1.2, masks
    ("fused.sparse_mode", option("fused", "sparse_mode", 2), {}),
    ("fused.mask.none", option("fused", "sparse_mode", 0), {}),
    ("fused.mask.given", option("fused", "atten_mask", None), {}),
    ("fused.mask.shape", mask(lambda m: m[:1024, :1024].contiguous()), {}),
    ("fused.mask.dtype", mask(lambda m: m.float()), {}),
    ("fused.mask.triangle", mask(lambda m: m.T.contiguous()), {}),
    ("wrong", wrong_band, {"sliding_window": 7}),
    ("wrong", option("fused", "scale", 1.0), {}),
    # 1.2, sinks
    ("fused.sinks.dtype", float32_sinks, {"sinks": (0.5, 1.0, 2.0, -1.0)}),
    # 1.3
    ("paged.lengths.host", argument("paged", 7, lambda lengths: lengths.to("npu")), {"head_size": 64}),
    ("paged.lengths.dtype", argument("paged", 7, lambda lengths: lengths.long()), {"head_size": 64}),
    ("paged.lengths.number", argument("paged", 7, lambda lengths: lengths[:1]), {"head_size": 64}),
    ("paged.table.dtype", argument("paged", 6, lambda table: table.long()), {"head_size": 64}),
    ("paged.table.rows", argument("paged", 6, lambda table: table[:1]), {"head_size": 64}),
    ("paged.out.contiguous", argument("paged", 8, every_second), {"head_size": 64}),
    ("paged.block_size", way(support.Way.PAGED_DECODE), {"head_size": 64, "block_size": 256}),
    ("paged.head_size", way(support.Way.PAGED_DECODE), {"head_size": 320}),
    ("wrong", way(support.Way.PAGED_DECODE), {"head_size": 64, "sliding_window": 4}),
    # 1.4
    ("scatter.mode", without("scatter", "cache_mode"), {}),
    ("scatter.key.contiguous", argument("scatter", 0, every_second), {}),
    ("scatter.dtype", argument("scatter", 1, lambda value: value.float()), {}),
    ("scatter.key_cache.shape", argument("scatter", 2, lambda cache: cache.flatten(2)[:, :, None]), {}),
    ("scatter.slots.dtype", argument("scatter", 4, lambda slots: slots.to(torch.int16)), {}),
    ("scatter.slots.unique", keep_all_padding, {"rows": PADDED}),
    ("scatter.slots.range", skip_null_block, {"rows": PADDED}),
]


def world(rows: list[Row] = ROWS, **options: Any) -> NpuWorld:
    return make_world(rows, num_decodes=sum(row.query_len == 1 for row in rows), **options)


def run(backend: AscendBackend, made: NpuWorld, strided: bool) -> None:
    if not strided:
        made.check(made.run(backend))
        return
    cache = made.poisoned_cache(backend, 0.0)
    step = backend.build_attention_metadata(made.batch(), cache)
    query = every_second(torch.cat(made.query).to("npu"))
    backend.attention_kernel(made.spec, made.kv).attend(query, cache.layer(0), step)


@pytest.mark.parametrize(("rule", "mutate", "options"), MUTANTS, ids=[f"{i}-{m[0]}" for i, m in enumerate(MUTANTS)])
def test_mutants_are_caught(
    backend: AscendBackend, monkeypatch: Patch, rule: str, mutate: Mutation, options: dict[str, Any]
) -> None:
    mutate(monkeypatch, backend)
    options = dict(options)
    strided = options.pop("strided", False)
    made = world(**options)
    with pytest.raises(AssertionError if rule == "wrong" else ConstraintViolation) as caught:
        run(backend, made, strided)
    assert rule in {"wrong", getattr(caught.value, "constraint", None)}


def test_none_is_caught_for_the_wrong_reason(backend: AscendBackend) -> None:
    """What the mutants run, the plugin itself runs: but for what it refuses before anything is allocated."""
    refused = 0
    for _, _, given in MUTANTS:
        options = dict(given)
        strided = options.pop("strided", False)
        made = world(**options)
        if made.kv.block_size == 16 and backend.unsupported(made.kv, made.spec):
            refused += 1
        elif len(made.rows) <= limits.MAX_SEQUENCES:
            run(backend, made, strided)
    assert refused == 2  # the two head numbers
