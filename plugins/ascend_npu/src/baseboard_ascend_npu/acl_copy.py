"""``aclrtMemcpyBatchAsync``: many copies between host and device in one call of the driver, through ctypes.

The layout of the structures is that of CANN's ``acl_rt.h``, as its documents print it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import BackendFault
from baseboard_ascend_npu.driver import LIBRARY
from baseboard_ascend_npu.limits import MAX_BATCHED_COPIES

_NOT_SUPPORTED: Final = 207000  # ACL_ERROR_RT_FEATURE_NOT_SUPPORT


class Place(IntEnum):
    """aclrtMemLocationType."""

    HOST = 0
    DEVICE = 1


class _Location(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint32), ("type", ctypes.c_int32))


class _Attributes(ctypes.Structure):
    _fields_ = (("destination", _Location), ("source", _Location), ("reserved", ctypes.c_uint8 * 16))


@dataclass(frozen=True, slots=True)
class CopyList:
    """Copies whose destinations are disjoint: they run in no certain order."""

    destinations: NDArray[np.uint64]  #: addresses ``[n]``
    sources: NDArray[np.uint64]
    sizes: NDArray[np.uint64]  #: bytes
    to: Place  #: the other side is the source's


class BatchNotSupported(Exception):
    """CANN, or its driver, is older than the call."""


class BatchCopier:
    """The call for one device. Raises ``BatchNotSupported`` when CANN is older than 8.5."""

    def __init__(self, device_index: int) -> None:
        try:
            self._call: Final[Any] = ctypes.CDLL(LIBRARY).aclrtMemcpyBatchAsync
        except AttributeError as error:
            raise BatchNotSupported(str(error)) from error
        pointer = ctypes.c_void_p
        self._call.argtypes = [pointer] * 4 + [ctypes.c_size_t] + [pointer] * 2 + [ctypes.c_size_t] + [pointer] * 2
        self._device_index: Final = device_index

    def enqueue(self, copies: CopyList, stream: int) -> None:
        """Enqueue ``copies`` on ``stream``, a raw handle.

        Raises ``BatchNotSupported`` with nothing enqueued, ``BackendFault`` for any other error.
        """
        device = self._device_index
        other = Place.HOST if copies.to is Place.DEVICE else Place.DEVICE
        attributes = _Attributes(_Location(device, copies.to), _Location(device, other))
        first, failed = ctypes.c_size_t(0), ctypes.c_size_t(0)
        for begin in range(0, len(copies.sizes), MAX_BATCHED_COPIES):
            part = slice(begin, begin + MAX_BATCHED_COPIES)
            destinations, sources, sizes = copies.destinations[part], copies.sources[part], copies.sizes[part]
            error = self._call(
                destinations.ctypes.data,
                sizes.ctypes.data,
                sources.ctypes.data,
                sizes.ctypes.data,
                len(sizes),
                ctypes.addressof(attributes),
                ctypes.addressof(first),
                1,
                ctypes.addressof(failed),
                stream,
            )
            if error == _NOT_SUPPORTED and begin == 0:
                raise BatchNotSupported("the driver answered that the feature is not supported")
            if error:
                raise BackendFault(f"aclrtMemcpyBatchAsync failed with CANN error {error}: close the backend")
