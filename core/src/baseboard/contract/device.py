"""What a backend says about its chip: data, so that the core never asks who it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

DType: TypeAlias = Literal["float32", "bfloat16", "float16"]
#: ``auto`` stores keys and values in the model's dtype.
KVDType: TypeAlias = Literal["auto", "int8", "fp8_e4m3"]
Feature: TypeAlias = Literal[
    "sliding_window",
    "softcap",
    "alibi",
    "sinks",
    "mixed_batch",
    "non_causal",
    "value_head_size",
    "async_swap",
]


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device that a plugin's cheap probe found, or looked for in vain."""

    backend: str  #: name by which users choose the backend, ``"cuda"``
    device_type: str  #: torch device type, ``"cuda"``, ``"npu"``, ``"cpu"``
    index: int  #: index within the device type
    name: str  #: as a person would call the chip
    arch: str  #: ``"sm_90"``, ``"Ascend910B2"``, ``"avx512_bf16"``
    total_memory: int  #: bytes; 0 where the probe cannot tell without opening the device
    available: bool
    reason: str | None = None  #: why not available; None where it is
    priority: int = 0  #: ``auto`` takes the highest among the available
    details: Mapping[str, str] = field(default_factory=dict[str, str])  #: for ``baseboard backends --verbose``


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend promises; whatever is not declared must be refused by ``unsupported``."""

    dtypes: tuple[DType, ...]
    kv_dtypes: tuple[KVDType, ...]
    block_sizes: tuple[int, ...]  #: tokens a block, preferred first
    head_sizes: tuple[int, ...] | None  #: None: every multiple of ``head_size_multiple``
    head_size_multiple: int
    max_head_size: int
    max_gqa_ratio: int | None  #: query heads per KV head; None: no limit
    features: frozenset[Feature]
    max_seqs: int | None  #: sequences in one step; None: no limit
    pinned_host_memory: bool
    communicator: str  #: name of the torch.distributed backend: ``"nccl"``, ``"hccl"``, ``"gloo"``


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """Memory of the device at one moment, all in bytes.

    ``total`` and ``free`` are what the whole machine or container may use and has left; ``allocated``,
    ``peak`` (since ``reset_peak_memory``) and ``reserved`` are this process's. ``peak >= allocated`` always.
    """

    total: int
    free: int
    allocated: int
    peak: int
    reserved: int
