"""What the kernels need of one step."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from baseboard.contract import StepBatch
from baseboard_cpu_avx512.structures import PlanArgs


@dataclass(frozen=True, slots=True)
class RowShape:
    """What makes the work of two kinds of layers differ: a plan is made for each in a step."""

    heads: int
    kv_heads: int
    head_size: int
    head_size_v: int
    window: int  #: 0: none
    stored: int
    level: int


class Plan:
    """A step cut into work items, owned by the library until this object goes."""

    def __init__(self, library: ctypes.CDLL, args: PlanArgs) -> None:
        handle = ctypes.c_void_p()
        self._library: Final = library
        self.handle: int | None = None
        if library.bb_plan_create(args, handle):
            raise torch.OutOfMemoryError("the work plan of this step does not fit into memory")
        self.handle = handle.value

    def __len__(self) -> int:
        return self._library.bb_plan_items(self.handle)

    def __del__(self) -> None:
        if self.handle is not None:
            self._library.bb_plan_destroy(self.handle)


class StepMetadata:
    """The step's index arrays, copied, since the core writes them anew each step; plans are made on first use.

    ``threads`` is how many work on this step.
    """

    def __init__(self, library: ctypes.CDLL, batch: StepBatch, threads: int) -> None:
        self._library: Final = library
        self._starts: Final = batch.query_start_loc.astype(np.int32, order="C", copy=True)
        self._lengths: Final = batch.seq_lens.astype(np.int32, order="C", copy=True)
        self._tables: Final = batch.block_tables.astype(np.int32, order="C", copy=True)
        self._slots: Final = batch.slot_mapping.astype(np.int64, order="C", copy=True)
        self._causal: Final = batch.causal
        self._plans: Final[dict[RowShape, Plan]] = {}
        self.threads: Final = threads
        self.num_tokens: Final = len(self._slots)
        self.slots: Final = _address(self._slots)
        self.block_tables: Final = _address(self._tables)
        self.table_stride: Final = self._tables.shape[1]

    def plan(self, shape: RowShape) -> Plan:
        """The work for layers of this shape; made for the first of them, kept for the others."""
        plan = self._plans.get(shape)
        if plan is None:
            plan = self._plans[shape] = self._make_plan(shape)
        return plan

    def _make_plan(self, shape: RowShape) -> Plan:
        return Plan(
            self._library,
            PlanArgs(
                query_start=_address(self._starts),
                seq_lens=_address(self._lengths),
                sequences=len(self._lengths),
                heads=shape.heads,
                kv_heads=shape.kv_heads,
                head_size=shape.head_size,
                head_size_v=shape.head_size_v,
                window=shape.window,
                causal=self._causal,
                level=shape.level,
                threads=self.threads,
                stored=shape.stored,
            ),
        )


def _address(array: NDArray[Any]) -> int:
    return array.ctypes.data
