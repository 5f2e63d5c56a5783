"""A CUDA driver's library for probes: answers as the real one does, through ctypes pointers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class FakeGpu:
    name: str = "NVIDIA H100 80GB HBM3"
    capability: tuple[int, int] = (9, 0)
    memory: int = 85_000_000_000
    processors: int = 132
    integrated: bool = False


@dataclass
class FakeDriver:
    gpus: list[FakeGpu] = field(default_factory=lambda: [FakeGpu()])
    version: int = 12080
    init: int = 0  #: what cuInit returns
    count: int = 0  #: what cuDeviceGetCount returns
    calls: list[str] = field(default_factory=list)

    def cuInit(self, flags: int) -> int:
        assert flags == 0
        return self.init if self.gpus or self.init else 100

    def cuDriverGetVersion(self, out: Any) -> int:
        out._obj.value = self.version
        return 0

    def cuDeviceGetCount(self, out: Any) -> int:
        out._obj.value = len(self.gpus)
        return self.count

    def cuDeviceGet(self, out: Any, index: int) -> int:
        out._obj.value = index
        return 0

    def cuDeviceGetName(self, out: Any, length: int, device: Any) -> int:
        out.value = self.gpus[device.value].name.encode()[: length - 1]
        return 0

    def cuDeviceTotalMem_v2(self, out: Any, device: Any) -> int:
        out._obj.value = self.gpus[device.value].memory
        return 0

    def cuDeviceGetAttribute(self, out: Any, which: int, device: Any) -> int:
        gpu = self.gpus[device.value]
        out._obj.value = {75: gpu.capability[0], 76: gpu.capability[1], 16: gpu.processors, 18: gpu.integrated}[which]
        return 0

    def cuGetErrorName(self, code: int, out: Any) -> int:
        names = {
            3: b"CUDA_ERROR_NOT_INITIALIZED",
            803: b"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            100: b"CUDA_ERROR_NO_DEVICE",
        }
        if code not in names:
            return 1
        out._obj.value = names[code]
        return 0
