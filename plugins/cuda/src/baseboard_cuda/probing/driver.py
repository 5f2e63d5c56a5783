"""The CUDA driver's own word on its devices, through ctypes. Initialises the driver, makes no context."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final

#: Names under which the driver's library is installed; the second one without its development package.
LIBRARIES: Final = ("libcuda.so.1", "libcuda.so")

_MAJOR: Final = 75  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
_MINOR: Final = 76
_PROCESSORS: Final = 16
_INTEGRATED: Final = 18
_NO_DEVICE: Final = 100
_NAME_LENGTH: Final = 256

#: What a user can do about the usual reasons of ``cuInit``, by its number.
_ADVICE: Final = {
    3: "the process was forked after CUDA had been used; start it with spawn",
    34: "libcuda is the stub of the toolkit; the driver's own must come first on the library path",
    46: "another process holds the GPU exclusively",
    802: "the machine's fabric manager has not started yet",
    803: "the driver's library and its kernel module differ; restart the machine, or the container",
    804: "this GPU does not run a driver library newer than its kernel module",
    999: "the kernel module may not be loaded, or the container may not see /dev/nvidia*",
}


class DriverError(Exception):
    """The driver is not there, or does not work; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the driver describes it, in the driver's order and within CUDA_VISIBLE_DEVICES."""

    name: str
    capability: tuple[int, int]
    total_memory: int  #: bytes
    num_processors: int
    integrated: bool  #: it shares the host's memory


class Driver:
    """The few functions a probe needs. Raises ``DriverError`` when the driver cannot be initialised."""

    def __init__(self, library: Any) -> None:
        self._library: Final = library
        code = library.cuInit(0)
        if code not in {0, _NO_DEVICE}:
            advice = f": {_ADVICE[code]}" if code in _ADVICE else ""
            raise DriverError(f"the NVIDIA driver cannot be initialised ({self._name_of(code)}){advice}")
        self._usable = code == 0

    def cuda_version(self) -> tuple[int, int]:
        """The newest CUDA that this driver runs."""
        number = ctypes.c_int()
        self._check(self._library.cuDriverGetVersion(ctypes.byref(number)), "cuDriverGetVersion")
        return number.value // 1000, number.value % 1000 // 10

    def gpus(self) -> list[Gpu]:
        if not self._usable:
            return []
        count = ctypes.c_int()
        self._check(self._library.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
        return [self._gpu(index) for index in range(count.value)]

    def _gpu(self, index: int) -> Gpu:
        device, total, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(_NAME_LENGTH)
        self._check(self._library.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
        self._check(self._library.cuDeviceGetName(name, _NAME_LENGTH, device), "cuDeviceGetName")
        self._check(self._library.cuDeviceTotalMem_v2(ctypes.byref(total), device), "cuDeviceTotalMem")
        major, minor, processors, integrated = (
            self._attribute(device, which) for which in (_MAJOR, _MINOR, _PROCESSORS, _INTEGRATED)
        )
        text = name.value.decode(errors="replace")
        return Gpu(text, (major, minor), total.value, processors, bool(integrated))

    def _attribute(self, device: ctypes.c_int, which: int) -> int:
        value = ctypes.c_int()
        self._check(self._library.cuDeviceGetAttribute(ctypes.byref(value), which, device), "cuDeviceGetAttribute")
        return value.value

    def _check(self, code: int, what: str) -> None:
        if code:
            raise DriverError(f"{what} failed with {self._name_of(code)}")

    def _name_of(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._library.cuGetErrorName(code, ctypes.byref(text)) or text.value is None:
            return f"error {code}"
        return text.value.decode(errors="replace")


def load_library() -> Any:
    """The driver's library. Raises ``DriverError`` when there is none."""
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise DriverError("there is no NVIDIA driver: libcuda.so.1 is not on the library path")
