"""Every launch that is worth compiling: each kernel in each shipped configuration, dtype and storage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, get_args

import numpy as np
import torch

from baseboard.contract import AttentionSpec, DType, KVCacheSpec, KVDType, StepBatch
from baseboard.kit.dtypes import torch_dtype
from baseboard.kit.pool import DeviceMemory
from baseboard_cuda.attention import PagedAttention
from baseboard_cuda.blocks import copy_blocks, zero_blocks
from baseboard_cuda.cache import make_cache
from baseboard_cuda.check.recording import Launch, recorded
from baseboard_cuda.chip import Chip
from baseboard_cuda.layout import block_layout
from baseboard_cuda.memory import HostMeter
from baseboard_cuda.metadata import make_metadata
from baseboard_cuda.operators import make_operator
from baseboard_cuda.sampling import Draws
from baseboard_cuda.swap.swapper import HostSwapper
from baseboard_cuda.tiles import TileTable, load_tiles, table_name

ARCHITECTURES: Final = (75, 80, 86, 89, 90, 100, 103, 120)
_HEADS: Final = (32, 8)
KV_DTYPES: Final[tuple[KVDType, ...]] = ("auto", "fp8_e4m3")
HEAD_SIZES: Final = (64, 80, 128, 256, 512)
#: ``bare`` is not causal, and has no scales in FP8: one head size shows that what has less fits as well.
FEATURES: Final = ("plain", "everything", "bare")
_THOROUGH_SIZE: Final = 128
_MANY: Final = 1000  # processors: enough that keys are split
_LONG: Final = 8192
_BFLOAT16_FROM: Final = 80


@dataclass(frozen=True, slots=True)
class Variant:
    """One launch on one architecture, named for people."""

    capability: int
    label: str
    launch: Launch
    matrix: bool  #: whether its products must be done by matrix instructions


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of the variants; without arguments, all of them."""

    text: str = ""  #: what their labels contain
    head_sizes: tuple[int, ...] = HEAD_SIZES  #: of attention
    features: tuple[str, ...] = FEATURES  #: of attention


def variants(capability: int, selection: Selection) -> list[Variant]:
    """What is ``selection`` of one architecture, with its shipped tiles."""
    return [variant for variant in _unique(_variants(capability, selection)) if selection.text in variant.label]


def _variants(capability: int, selection: Selection) -> Iterator[Variant]:
    tiles = load_tiles(table_name(capability))
    for dtype in dtypes(capability):
        for kv_dtype, size in product(KV_DTYPES, selection.head_sizes):
            for features in features_of(size):
                if features in selection.features:
                    yield from attention_variants(capability, tiles, Kind(dtype, kv_dtype, size, features))
        yield from _named(capability, dtype, _operators(dtype))
    yield from _named(capability, "any", _blocks())


def dtypes(capability: int) -> tuple[DType, ...]:
    return tuple(d for d in get_args(DType) if d != "bfloat16" or capability >= _BFLOAT16_FROM)


def features_of(head_size: int) -> tuple[str, ...]:
    """What is compiled of layers with this head size."""
    return FEATURES if head_size == _THOROUGH_SIZE else FEATURES[:2]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of layer."""

    dtype: DType
    kv_dtype: KVDType
    head_size: int
    features: str

    def specs(self) -> tuple[AttentionSpec, KVCacheSpec]:
        each = (0.5,) * _HEADS[0]
        everything = {"sliding_window": 4096, "softcap": 30.0, "alibi_slopes": each, "sinks": each}
        options: dict[str, Any] = everything if self.features == "everything" else {}
        size = self.head_size
        kv = KVCacheSpec(1, _HEADS[1], size, size, self.dtype, 16, self.kv_dtype)
        return AttentionSpec(*_HEADS, size, size**-0.5, **options), kv

    @property
    def fp8_scale(self) -> str:
        return "tensor" if self.features == "bare" else "token_head"

    @property
    def causal(self) -> bool:
        return self.features != "bare"


def attention_variants(capability: int, tiles: TileTable, kind: Kind) -> Iterator[Variant]:
    """What a layer of this kind launches: storing, a decode, a prefill."""
    for processors in (_MANY, 0):
        for launch in _attention(kind, recording_chip(capability, tiles, processors)):
            name = launch.kernel.__name__
            # Decodes are mostly split and prefills mostly not. That the other way fits, too, one head size shows.
            usual = launch.constants.get("SPLIT") == launch.constants.get("ONE_QUERY")
            if kind.head_size != _THOROUGH_SIZE and not usual:
                continue
            # Triton has no matrix instructions for Turing, nor any of full float32 precision.
            matrix = name == "paged_attention" and capability >= _BFLOAT16_FROM and kind.dtype != "float32"
            yield Variant(capability, _attention_label(launch, kind), launch, matrix)


def _attention_label(launch: Launch, kind: Kind) -> str:
    """Named for what the launch depends on: storing knows no features, and joining does not see the cache."""
    name, size = launch.kernel.__name__, str(kind.head_size)
    if name == "join_splits":
        return _label(name, kind.dtype, size)
    if name == "write_kv":
        scale = kind.fp8_scale if kind.kv_dtype != "auto" else ""
        return _label(name, kind.dtype, kind.kv_dtype, size, scale)
    part = "decode" if launch.constants["ONE_QUERY"] else "prefill"
    split = "split" if launch.constants["SPLIT"] else ""
    return _label(name, part, kind.dtype, kind.kv_dtype, size, kind.features, split)


def _attention(kind: Kind, chip: Chip) -> list[Launch]:
    """Writing, a decode and a prefill."""
    attention, kv = kind.specs()
    layout = block_layout(kv, kind.fp8_scale)
    cache = make_cache(kv, layout, 2, chip.memory)
    columns = _LONG // kv.block_size
    batch = StepBatch(
        query_start_loc=np.array([0, 1, 18], np.int32),
        seq_lens=np.array([_LONG, _LONG], np.int32),
        block_tables=np.zeros((2, columns), np.int32),
        slot_mapping=np.zeros(18, np.int64),
        positions=np.zeros(18, np.int64),
        num_decodes=1,
        max_query_len=17,
        max_seq_len=_LONG,
        causal=kind.causal,
    )
    kernel = PagedAttention(attention, kv, layout, chip)
    metadata = make_metadata(batch, kv.block_size, torch.from_numpy)
    dtype = torch_dtype(kv.dtype)
    query = torch.zeros(18, attention.num_heads, kv.head_size, dtype=dtype)
    key = torch.zeros(18, kv.num_kv_heads, kv.head_size, dtype=dtype)
    with recorded() as launches:
        kernel.write(key, key, cache.layer(0), metadata)
        kernel.attend(query, cache.layer(0), metadata)
    return launches


def _operators(dtype: DType) -> list[Launch]:
    spec = {"dtype": dtype, "eps": 1e-5, "rotary_dim": 64, "interleaved": False}
    kind = torch_dtype(dtype)
    launches: list[Launch] = []
    for size in (576, 4096, 16384):
        rows, weight = torch.zeros(2, size, dtype=kind), torch.zeros(size, dtype=kind)
        with recorded() as some:
            _operator("rms_norm", spec)(rows, weight)
            _operator("add_rms_norm", spec)(rows, rows, weight)
            _operator("silu_and_mul", spec)(rows)
        launches += some
    heads = torch.zeros(2, 4, 128, dtype=kind)
    angles = torch.zeros(8, 64, dtype=torch.float32)
    for interleaved in (False, True):
        with recorded() as some:
            _operator("rotary_embedding", {**spec, "interleaved": interleaved})(
                heads, heads, torch.zeros(2, dtype=torch.int64), angles
            )
        launches += some
    row, none = torch.zeros(2), torch.zeros(2, dtype=torch.int32)
    with recorded() as some:
        _operator("sample", spec)(
            torch.zeros(2, 32000, dtype=kind), Draws(row, none, row, row, torch.zeros(2, dtype=torch.float64))
        )
    return launches + some


def _operator(name: str, spec: dict[str, Any]) -> Any:
    operator = make_operator(name, spec)
    assert operator is not None, f"{name} is one of this plugin's"
    return operator


def _blocks() -> list[Launch]:
    kv = KVCacheSpec(2, 8, 128, 128, "float16", 16)
    cache = make_cache(kv, block_layout(kv, "token_head"), 4, DeviceMemory(torch.device("cpu")))
    with recorded() as launches:
        copy_blocks(cache, np.array([[1, 2]]), torch.from_numpy)
        zero_blocks(cache, np.array([1]), torch.from_numpy)
    return launches


def _named(capability: int, dtype: str, launches: list[Launch]) -> Iterator[Variant]:
    for launch in launches:
        size = launch.constants.get("SIZE", launch.constants.get("HEAD_SIZE", ""))
        way = "interleaved" if launch.constants.get("INTERLEAVED") else ""
        yield Variant(capability, _label(launch.kernel.__name__, "", dtype, "auto", str(size), way), launch, False)


def _label(kernel: str, *words: str) -> str:
    return " ".join([kernel, *(word for word in words if word not in {"", "auto"})])


def recording_chip(capability: int, tiles: TileTable, processors: int) -> Chip:
    """A device that is never touched: launches on it are recorded only."""
    cpu = torch.device("cpu")
    memory = DeviceMemory(cpu)
    return Chip(
        device=cpu,
        dtypes=dtypes(capability),
        tiles=tiles,
        num_processors=processors,
        communicator="gloo",
        asynchronous=False,
        memory=memory,
        host_pools=memory,
        host_buffers=memory,
        upload=torch.from_numpy,
        meter=HostMeter(),
        swapper=HostSwapper(),
        engines=(),
    )


def _unique(found: Iterator[Variant]) -> list[Variant]:
    """Each label once: the launches of one label are alike but for who asked for them."""
    seen: dict[str, Variant] = {}
    for variant in found:
        seen.setdefault(variant.label, variant)
    return list(seen.values())
