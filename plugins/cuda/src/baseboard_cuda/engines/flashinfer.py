"""FlashInfer, where its package is installed and something is there that compiles its kernels, or has compiled them.

Its kernels are planned on the host before each step, once for all layers of one kind: at the first of them.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import AttentionSpec, KVCacheSpec
from baseboard.kit.dtypes import torch_dtype
from baseboard_cuda.cache import LayerPlane
from baseboard_cuda.engines.choice import Attend, Engine, Missing
from baseboard_cuda.engines.pages import common_reasons, pages_of
from baseboard_cuda.faults import device_faults
from baseboard_cuda.metadata import CudaMetadata, Part

NAME: Final = "flashinfer"
_HEAD_SIZES: Final = (64, 128, 256)
_PAGE_SIZES: Final = (16, 32, 64)
_WORKSPACE_NBYTES: Final = 128 << 20  # what its documentation recommends
_TENSOR_CORES_FROM: Final = 4  # query heads per KV head, below which its plain decode is as fast
#: Packages that bring compiled kernels.
_COMPILED: Final = ("flashinfer_jit_cache", "flashinfer_cubin")


@dataclass(slots=True, eq=False)
class FlashInfer:
    """Implements :class:`baseboard_cuda.engines.choice.Engine`. Owner: the backend; layers of a kind share a plan."""

    module: Any
    device: torch.device
    name: str = NAME
    _workspace: torch.Tensor | None = None
    _plans: dict[tuple[AttentionSpec, KVCacheSpec], _Plans] = field(default_factory=dict)

    def reasons_against(self, attention: AttentionSpec, kv: KVCacheSpec) -> list[str]:
        reasons = list(common_reasons(attention, kv))
        if kv.head_size not in _HEAD_SIZES:
            reasons.append(f"head size {kv.head_size} is none of {', '.join(map(str, _HEAD_SIZES))}")
        if kv.block_size not in _PAGE_SIZES:
            reasons.append(f"block size {kv.block_size} is none of {', '.join(map(str, _PAGE_SIZES))}")
        return reasons

    def make(self, attention: AttentionSpec, kv: KVCacheSpec) -> Attend:
        if self._workspace is None:
            self._workspace = torch.empty(_WORKSPACE_NBYTES, dtype=torch.uint8, device=self.device)
        key = (attention, kv)
        if key not in self._plans:
            self._plans[key] = _Plans(self.module, self._workspace, attention, kv)
        return self._plans[key]


class _Plans:
    """The wrappers of one kind of layer. Two sets take turns: a plan's host memory is still read by the step before."""

    def __init__(self, module: Any, workspace: torch.Tensor, attention: AttentionSpec, kv: KVCacheSpec) -> None:
        self._attention: Final = attention
        self._kv: Final = kv
        ratio = attention.num_heads // kv.num_kv_heads
        decode, prefill = module.BatchDecodeWithPagedKVCacheWrapper, module.BatchPrefillWithPagedKVCacheWrapper
        self._sets: Final = [
            {
                True: decode(workspace, "NHD", use_tensor_cores=ratio >= _TENSOR_CORES_FROM),
                False: prefill(workspace, "NHD"),
            }
            for _ in range(2)
        ]
        self._planned_for: CudaMetadata | None = None

    def __call__(self, query: torch.Tensor, layer: LayerPlane, metadata: CudaMetadata) -> torch.Tensor:
        pages = pages_of(layer, self._kv)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        with device_faults("attention by FlashInfer"):
            if self._planned_for is not metadata:
                self._plan(metadata)
            for part in metadata.parts:
                tokens = slice(part.first_token, part.first_token + part.num_tokens)
                self._sets[0][part.one_query].run(query[tokens].contiguous(), pages, out=out[tokens])
        return out

    def _plan(self, metadata: CudaMetadata) -> None:
        self._sets.reverse()
        for part in metadata.parts:
            pages = page_lists(metadata, part, self._kv.block_size)
            heads = self._attention.num_heads, self._kv.num_kv_heads, self._kv.head_size, self._kv.block_size
            wrapper = self._sets[0][part.one_query]
            if part.one_query:
                wrapper.plan(*pages, *heads, **self._numbers())
            else:
                wrapper.plan(
                    _tensor(_starts(metadata, part)), *pages, *heads, causal=metadata.causal, **self._numbers()
                )
        self._planned_for = metadata

    def _numbers(self) -> dict[str, Any]:
        window, dtype = self._attention.sliding_window, torch_dtype(self._kv.dtype)
        return {
            # Ours counts the query's own key, theirs the keys before it.
            "window_left": -1 if window is None else window - 1,
            "logits_soft_cap": self._attention.softcap,
            "sm_scale": self._attention.scale,
            "q_data_type": dtype,
            "kv_data_type": dtype,
        }


def page_lists(metadata: CudaMetadata, part: Part, page_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """On the host, int32: where each sequence's pages begin ``[S+1]``, the pages, and tokens in each last one ``[S]``.

    From the device they would be waited for.
    """
    chosen = slice(part.first_sequence, part.first_sequence + part.num_sequences)
    lengths, tables = metadata.host_seq_lens[chosen], metadata.host_block_tables[chosen]
    counts = -(-lengths // page_size)
    begins = np.concatenate([[0], np.cumsum(counts)])
    used = np.arange(tables.shape[1]) < counts[:, None]
    return _tensor(begins), _tensor(tables[used]), _tensor((lengths - 1) % page_size + 1)


def find_flashinfer(device: torch.device) -> Engine:
    """As it is installed. Its import takes seconds, and happens here."""
    if find_spec("flashinfer") is None:
        return Missing(NAME, "flashinfer is not installed: pip install flashinfer-python")
    if not _can_compile():
        return Missing(
            NAME, f"FlashInfer has no kernels: neither nvcc nor {' nor '.join(_COMPILED)} can be found; set CUDA_HOME"
        )
    try:
        return FlashInfer(import_module("flashinfer"), device)
    except (ImportError, RuntimeError, OSError) as error:  # its import checks torch, CUDA and its own parts
        return Missing(NAME, f"flashinfer cannot be imported: {error}")


def _can_compile() -> bool:
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = shutil.which("nvcc") or (Path(home) / "bin" / "nvcc").exists()
    return bool(nvcc) or any(find_spec(name) is not None for name in _COMPILED)


def _starts(metadata: CudaMetadata, part: Part) -> NDArray[np.int32]:
    starts = metadata.host_query_start_loc[part.first_sequence : part.first_sequence + part.num_sequences + 1]
    return starts - starts[0]


def _tensor(numbers: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(numbers.astype(np.int32))
