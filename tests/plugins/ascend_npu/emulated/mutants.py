"""Plugins that break one rule each, by the rule's name; ``"wrong"`` where only the result tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from baseboard_ascend_npu import backend as backend_module
from baseboard_ascend_npu import factory, fused, kernels, metadata, support
from baseboard_ascend_npu.backend import AscendBackend
from baseboard_ascend_standin.emulator import fused as emulated
from baseboard_ascend_standin.emulator.calls import Chip
from plugins.ascend_npu.emulated.npu_world import Row

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


def no_sequence_limit(patch: Patch, _: AscendBackend) -> None:
    patch.setattr(metadata, "MAX_SEQUENCES", 10**6)


def no_contiguous_query(patch: Patch, _: AscendBackend) -> None:
    straight = kernels.FusedKernel._attend
    patch.setattr(
        kernels.FusedKernel, "attend", lambda self, query, layer, step: straight(self, query, layer, step, None)
    )


def wrong_band(patch: Patch, backend: AscendBackend) -> None:
    patch.setattr(factory, "measure_band", lambda *_: 0)


def on_a_chip_without(operator: str) -> Mutation:
    """The plugin that was opened on a chip for which the operator is not documented."""

    def mutate(patch: Patch, backend: AscendBackend) -> None:
        called(operator, lambda *_: patch.setattr(Chip, "has_operators", False))(patch, backend)

    return mutate


def no_limit_of_elements(patch: Patch, _: AscendBackend) -> None:
    """On an operator that counts to 10,000, for want of memory for more."""
    patch.setattr(emulated, "_INT32", 10_000)


def lengths(*values: int) -> Mutation:
    return metadata_of(lambda m: m.lengths.__setitem__(slice(None), values))


def tables(change: Callable[[torch.Tensor], Any]) -> Mutation:
    return metadata_of(lambda m: setattr(m, "tables", change(m.tables)))


def host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu()


def shorter(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:-1].contiguous()


SINKS = {"sinks": (0.5, 1.0, 2.0, -1.0)}
SHARED_64 = {"head_size": 64}


def sinks(change: Callable[[torch.Tensor], torch.Tensor]) -> Mutation:
    return called("fused_with_sinks", lambda _, o: o.update(learnable_sink=change(o["learnable_sink"])))


def operator(name: str) -> dict[str, Any]:
    """What is run is one of the fused operators beside attention."""
    return {"operator": name}


NORM, ADD_NORM, ACTIVATION = operator("rms_norm"), operator("add_rms_norm"), operator("silu_and_mul")
ROTARY, FILTER = operator("rotary_embedding"), operator("top_k_top_p")


#: The rule, the plugin, and what it is run on: options of :func:`make_world`, or an operator.
MUTANTS: list[tuple[str, Mutation, dict[str, Any]]] = [
    # 1.2, lengths
    ("fused.lengths.number", metadata_of(lambda m: m.query_ends.insert(0, 0)), {}),
    ("fused.query_ends.cumulative", metadata_of(lambda m: m.query_ends.__setitem__(slice(None), [9, 1, 7])), {}),
    ("fused.query_ends.total", metadata_of(lambda m: m.query_ends.__setitem__(-1, m.query_ends[-1] - 1)), {}),
    ("fused.table.columns", lengths(9, 42, 62), {}),
    ("fused.lengths.given", option("fused", "actual_seq_lengths_kv", None), {}),
    ("fused.query_ends.number", no_sequence_limit, {"rows": [Row(1, 1)] * 4097, "head_size": 128, "heads": (1, 1)}),
    ("fused.query_ends.given", option("fused", "actual_seq_lengths", None), {}),
    ("fused.lengths.negative", lengths(-1, 33, 20), {}),
    ("fused.lengths.causal", lengths(9, 33, 3), {}),
    # 1.2, tables and caches
    ("fused.table.given", tables(lambda _: None), {}),
    ("fused.table.rank", tables(lambda t: t[None]), {}),
    ("fused.block_table.device", tables(host), {}),
    ("fused.cache.alike", argument("fused", 2, shorter), {}),
    ("fused.cache.elements", no_limit_of_elements, {}),
    ("fused.key.contiguous", argument("fused", 1, every_second), {}),
    ("fused.value.device", argument("fused", 2, host), {}),
    ("fused.table.dtype", tables(torch.Tensor.long), {}),
    ("fused.block_table.contiguous", tables(every_second), {}),
    ("fused.table.rows", tables(lambda t: t.repeat(2, 1)), {}),
    ("fused.table.ids", metadata_of(lambda m: m.tables.add_(100)), {}),
    ("fused.cache.shape", argument("fused", 1, lambda key: key.unflatten(2, (2, 128))), {}),
    ("fused.cache.shape", option("fused", "block_size", 32), {}),
    ("fused.block_size", without("fused", "block_size"), {}),
    # 1.2, layout, heads and types
    ("fused.chip", on_a_chip_without("fused"), {}),
    ("fused.arguments", called("fused", lambda args, o: o.update(pse_shift=args[0])), {}),
    ("fused.query.rank", argument("fused", 0, lambda q: q[None]), {}),
    ("fused.query.heads", option("fused", "num_heads", 2), {}),
    ("fused.heads.shared", option("fused", "num_key_value_heads", 3), {}),
    ("fused.layout", without("fused", "input_layout"), {}),
    ("fused.query.contiguous", no_contiguous_query, {"strided": True}),
    ("fused.query.contiguous", argument("fused", 0, every_second), {}),
    ("fused.dtype", argument("fused", 0, lambda q: q.float()), {}),
    ("fused.inner_precise", option("fused", "inner_precise", 1), {}),
    ("fused.head_size", way(support.Way.FUSED), SHARED_64),
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
    ("fused.atten_mask.device", mask(host), {}),
    ("fused.band", option("fused", "next_tokens", -100), {"sliding_window": 7}),
    ("wrong", wrong_band, {"sliding_window": 7}),
    ("wrong", option("fused", "scale", 1.0), {}),
    # 1.2, sinks
    ("fused.sinks.dtype", sinks(torch.Tensor.float), SINKS),
    ("fused.sinks.device", sinks(host), SINKS),
    ("fused.sinks.shape", sinks(shorter), SINKS),
    ("fused.sinks.head_size", way(support.Way.FUSED_WITH_SINKS), SINKS | {"head_size": 256}),
    # 1.3
    ("paged.chip", on_a_chip_without("paged"), SHARED_64),
    ("paged.query.shape", called("paged", lambda args, _: args.__setitem__(4, 2)), SHARED_64),
    ("paged.heads", called("paged", lambda args, _: args.__setitem__(3, 3)), SHARED_64),
    ("paged.query.head_size", argument("paged", 0, lambda q: q[..., :32].contiguous()), SHARED_64),
    ("paged.cache.shape", argument("paged", 1, lambda cache: cache.flatten(2)), SHARED_64),
    ("paged.cache.alike", argument("paged", 2, shorter), SHARED_64),
    ("paged.block_table.device", argument("paged", 6, host), SHARED_64),
    ("paged.table.ids", argument("paged", 6, lambda table: table + 100), SHARED_64),
    ("paged.lengths.range", argument("paged", 7, lambda lengths: lengths * 0), SHARED_64),
    ("paged.dtype", argument("paged", 8, torch.Tensor.float), SHARED_64),
    ("paged.out.shape", argument("paged", 8, lambda out: out[..., :32].contiguous()), SHARED_64),
    ("paged.lengths.host", argument("paged", 7, lambda lengths: lengths.to("npu")), SHARED_64),
    ("paged.lengths.dtype", argument("paged", 7, lambda lengths: lengths.long()), SHARED_64),
    ("paged.lengths.number", argument("paged", 7, lambda lengths: lengths[:1]), SHARED_64),
    ("paged.table.dtype", argument("paged", 6, lambda table: table.long()), SHARED_64),
    ("paged.table.rows", argument("paged", 6, lambda table: table[:1]), SHARED_64),
    ("paged.out.contiguous", argument("paged", 8, every_second), SHARED_64),
    ("paged.block_size", way(support.Way.PAGED_DECODE), {"head_size": 64, "block_size": 256}),
    ("paged.head_size", way(support.Way.PAGED_DECODE), {"head_size": 320}),
    ("wrong", way(support.Way.PAGED_DECODE), {"head_size": 64, "sliding_window": 4}),
    # 1.4
    ("scatter.chip", on_a_chip_without("scatter"), {}),
    ("scatter.slot_mapping.device", argument("scatter", 4, host), {}),
    ("scatter.key.rank", argument("scatter", 0, lambda key: key[None]), {}),
    ("scatter.key.alike", argument("scatter", 1, shorter), {}),
    ("scatter.slots.shape", argument("scatter", 4, shorter), {}),
    ("scatter.mode", without("scatter", "cache_mode"), {}),
    ("scatter.key.contiguous", argument("scatter", 0, every_second), {}),
    ("scatter.dtype", argument("scatter", 1, lambda value: value.float()), {}),
    ("scatter.key_cache.shape", argument("scatter", 2, lambda cache: cache.flatten(2)[:, :, None]), {}),
    ("scatter.slots.dtype", argument("scatter", 4, lambda slots: slots.to(torch.int16)), {}),
    ("scatter.slots.unique", keep_all_padding, {"rows": PADDED}),
    ("scatter.slots.range", skip_null_block, {"rows": PADDED}),
    # 1.5
    ("rms_norm.device", argument("rms_norm", 1, host), NORM),
    ("rms_norm.rank", argument("rms_norm", 0, lambda x: x[0]), NORM),
    ("rms_norm.dtype", argument("rms_norm", 0, torch.Tensor.double), NORM),
    ("rms_norm.gamma.dtype", argument("rms_norm", 1, torch.Tensor.float), NORM),
    ("rms_norm.gamma.shape", argument("rms_norm", 1, shorter), NORM),
    ("rms_norm.alike", argument("add_rms_norm", 1, shorter), ADD_NORM),
    ("swiglu.rank", argument("swiglu", 0, lambda x: x[(None,) * 7]), ACTIVATION),
    ("swiglu.dtype", argument("swiglu", 0, torch.Tensor.double), ACTIVATION),
    ("swiglu.even", argument("swiglu", 0, lambda x: x[:, 1:]), ACTIVATION),
    ("mrope.rank", argument("rotary", 1, lambda q: q.unflatten(1, (-1, 64))), ROTARY),
    ("mrope.dtype", argument("rotary", 3, torch.Tensor.float), ROTARY),
    ("mrope.positions", argument("rotary", 0, torch.Tensor.float), ROTARY),
    ("mrope.positions.range", argument("rotary", 0, lambda positions: positions + 1000), ROTARY),
    ("mrope.sections", option("rotary", "mrope_section", [16, 24, 24]), ROTARY),
    ("mrope.mode", option("rotary", "rotary_mode", "full"), ROTARY),
    ("mrope.rotary_dim", argument("rotary", 3, lambda table: table[:, :24]), ROTARY),
    ("top_k_top_p.k.dtype", argument("top_k_top_p", 2, torch.Tensor.long), FILTER),
    ("top_k_top_p.k.range", argument("top_k_top_p", 2, lambda k: k * 0), FILTER),
    ("top_k_top_p.p.dtype", argument("top_k_top_p", 1, torch.Tensor.double), FILTER),
    ("top_k_top_p.shapes", argument("top_k_top_p", 1, shorter), FILTER),
    ("wrong", called("top_k_top_p", lambda args, _: args.__setitem__(slice(1, 3), args[2:0:-1])), FILTER),
]
