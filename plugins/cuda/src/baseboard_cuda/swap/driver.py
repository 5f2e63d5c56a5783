"""The driver's copy functions, through ctypes: one call for a whole batch where the driver has that (CUDA 12.8)."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any, Final, Protocol

from baseboard.contract import BackendFault
from baseboard_cuda.swap.plan import Descriptors

_BATCH_SYMBOL: Final = b"cuMemcpyBatchAsync"
#: The function as it was in CUDA 12.8: with the index of the copy that failed. Later ones lost it.
_BATCH_VERSION: Final = 12080
_NO_INDEX: Final = ctypes.c_size_t(-1).value


class SourceAccess(IntEnum):
    """When the source of a copy may be read: CUmemcpySrcAccessOrder."""

    STREAM = 1  #: in its turn on the stream
    ANY = 3  #: at any time from the call on: only where nothing under way writes it


class Location(ctypes.Structure):
    """CUmemLocation: a hint, and none is given."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class CopyAttributes(ctypes.Structure):
    """CUmemcpyAttributes"""

    _fields_ = (
        ("source_access", ctypes.c_int),
        ("source_hint", Location),
        ("destination_hint", Location),
        ("flags", ctypes.c_uint),
    )


class CopyTable(Protocol):
    """The functions as the driver has them: they return its error numbers. Tests put their own in this place."""

    def memcpy_batch_async(self, *args: Any) -> int:
        """destinations, sources, sizes, count, attributes, attribute indexes, their count, failed index, stream"""
        ...

    def memcpy_async(self, destination: int, source: int, nbytes: int, stream: int) -> int: ...
    def error_name(self, code: int) -> str: ...
    @property
    def has_batch(self) -> bool: ...


class DriverCopies:
    """The real :class:`CopyTable`."""

    def __init__(self, library: Any) -> None:
        self._library: Final = library
        self._memcpy: Final = library.cuMemcpyAsync
        self._memcpy.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
        self._batch: Final = _batch_function(library)

    @property
    def has_batch(self) -> bool:
        return self._batch is not None

    def memcpy_batch_async(self, *args: Any) -> int:
        assert self._batch is not None, "callers ask has_batch first"
        return self._batch(*args)

    def memcpy_async(self, destination: int, source: int, nbytes: int, stream: int) -> int:
        return self._memcpy(destination, source, nbytes, stream)

    def error_name(self, code: int) -> str:
        text = ctypes.c_char_p()
        known = not self._library.cuGetErrorName(code, ctypes.byref(text)) and text.value is not None
        return text.value.decode() if known and text.value is not None else f"error {code}"


def _batch_function(library: Any) -> Any | None:
    """``cuMemcpyBatchAsync``; None for a driver older than it."""
    find = getattr(library, "cuGetProcAddress_v2", None)
    if find is None:
        return None
    address, found = ctypes.c_void_p(), ctypes.c_int()
    code = find(_BATCH_SYMBOL, ctypes.byref(address), _BATCH_VERSION, ctypes.c_uint64(0), ctypes.byref(found))
    if code or not address.value:
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    return ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer, size, pointer, pointer, size, pointer, pointer)(
        address.value
    )


def submit(table: CopyTable, copies: Descriptors, access: SourceAccess, stream: int) -> None:
    """Enqueue all ``copies`` on ``stream``, a real one. Raises ``BackendFault`` naming the copy that failed."""
    if not len(copies):
        return
    if table.has_batch:
        _submit_batch(table, copies, access, stream)
    else:
        _submit_each(table, copies, stream)


def _submit_batch(table: CopyTable, copies: Descriptors, access: SourceAccess, stream: int) -> None:
    attributes = CopyAttributes(source_access=access)
    indexes, failed = ctypes.c_size_t(0), ctypes.c_size_t(_NO_INDEX)
    # The driver reads the arrays before it returns; they only have to live as long as the call.
    code = table.memcpy_batch_async(
        copies.destination.ctypes.data,
        copies.source.ctypes.data,
        copies.nbytes.ctypes.data,
        len(copies),
        ctypes.addressof(attributes),
        ctypes.addressof(indexes),
        1,
        ctypes.addressof(failed),
        stream,
    )
    if code:
        known = failed.value < len(copies)
        which = f" at copy {failed.value}, {copies.describe(failed.value)}" if known else ""
        raise BackendFault(f"the driver refused a batch of {len(copies)} copies with {table.error_name(code)}{which}")


def _submit_each(table: CopyTable, copies: Descriptors, stream: int) -> None:
    lists = (column.tolist() for column in (copies.destination, copies.source, copies.nbytes))
    for index, (destination, source, nbytes) in enumerate(zip(*lists, strict=True)):
        code = table.memcpy_async(destination, source, nbytes, stream)
        if code:
            name = table.error_name(code)
            raise BackendFault(f"the driver refused copy {index}, {copies.describe(index)}, with {name}")
