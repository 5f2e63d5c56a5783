"""The argument structures of ``native/abi.h``, field by field. No torch."""

from __future__ import annotations

import ctypes
from typing import Final

_POINTER: Final = ctypes.c_void_p
_INT32: Final = ctypes.c_int32
_INT64: Final = ctypes.c_int64
_FLOAT: Final = ctypes.c_float

#: ``bb_dtype``
DTYPES: Final = {"float32": 0, "bfloat16": 1, "float16": 2, "int8": 3}


class Cache(ctypes.Structure):
    """``bb_cache``: where one layer's blocks lie and how."""

    _fields_ = (
        ("base", _POINTER),
        ("block_stride", _INT64),
        ("head_stride", _INT64),
        ("value_offset", _INT64),
        ("scale_offset", _INT64),
        ("kv_heads", _INT32),
        ("head_size", _INT32),
        ("head_size_v", _INT32),
        ("block_size", _INT32),
        ("stored", _INT32),
        ("dtype", _INT32),
    )


class WriteArgs(ctypes.Structure):
    """``bb_write_args``"""

    _fields_ = (
        ("cache", _POINTER),
        ("key", _POINTER),
        ("value", _POINTER),
        ("slots", _POINTER),
        ("tokens", _INT64),
        ("key_token", _INT64),
        ("key_head", _INT64),
        ("value_token", _INT64),
        ("value_head", _INT64),
        ("level", _INT32),
        ("threads", _INT32),
    )


class PlanArgs(ctypes.Structure):
    """``bb_plan_args``"""

    _fields_ = (
        ("query_start", _POINTER),
        ("seq_lens", _POINTER),
        ("sequences", _INT64),
        ("heads", _INT32),
        ("kv_heads", _INT32),
        ("head_size", _INT32),
        ("head_size_v", _INT32),
        ("window", _INT32),
        ("causal", _INT32),
        ("level", _INT32),
        ("threads", _INT32),
        ("stored", _INT32),
    )


class AttendArgs(ctypes.Structure):
    """``bb_attend_args``"""

    _fields_ = (
        ("cache", _POINTER),
        ("plan", _POINTER),
        ("block_tables", _POINTER),
        ("table_stride", _INT64),
        ("query", _POINTER),
        ("out", _POINTER),
        ("query_token", _INT64),
        ("query_head", _INT64),
        ("out_token", _INT64),
        ("out_head", _INT64),
        ("slopes", _POINTER),
        ("sinks", _POINTER),
        ("scale", _FLOAT),
        ("softcap", _FLOAT),
        ("level", _INT32),
        ("threads", _INT32),
    )


class MoveArgs(ctypes.Structure):
    """``bb_move_args``"""

    _fields_ = (
        ("source", _POINTER),
        ("destination", _POINTER),
        ("source_stride", _INT64),
        ("destination_stride", _INT64),
        ("nbytes", _INT64),
        ("pairs", _POINTER),
        ("count", _INT64),
        ("threads", _INT32),
    )


class NormArgs(ctypes.Structure):
    """``bb_norm_args``"""

    _fields_ = (
        ("x", _POINTER),
        ("residual", _POINTER),
        ("weight", _POINTER),
        ("y", _POINTER),
        ("rows", _INT64),
        ("size", _INT64),
        ("x_stride", _INT64),
        ("residual_stride", _INT64),
        ("y_stride", _INT64),
        ("eps", _FLOAT),
        ("dtype", _INT32),
        ("level", _INT32),
        ("threads", _INT32),
    )


class GateArgs(ctypes.Structure):
    """``bb_gate_args``"""

    _fields_ = (
        ("x", _POINTER),
        ("y", _POINTER),
        ("rows", _INT64),
        ("size", _INT64),
        ("x_stride", _INT64),
        ("y_stride", _INT64),
        ("dtype", _INT32),
        ("level", _INT32),
        ("threads", _INT32),
    )


class RotaryArgs(ctypes.Structure):
    """``bb_rotary_args``"""

    _fields_ = (
        ("query", _POINTER),
        ("key", _POINTER),
        ("table", _POINTER),
        ("positions", _POINTER),
        ("tokens", _INT64),
        ("query_token", _INT64),
        ("query_head", _INT64),
        ("key_token", _INT64),
        ("key_head", _INT64),
        ("heads", _INT32),
        ("kv_heads", _INT32),
        ("rotary_size", _INT32),
        ("interleaved", _INT32),
        ("dtype", _INT32),
        ("level", _INT32),
        ("threads", _INT32),
    )
