"""Puts together what driver, software and environment say: devices, or the reason why there are none."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from baseboard.contract import DeviceInfo
from baseboard.kit.host_memory import read_host_memory
from baseboard_cuda.probing.driver import Driver, DriverError, Gpu, load_library
from baseboard_cuda.probing.nvml import driver_release
from baseboard_cuda.probing.software import Software, installed_software

NAME: Final = "cuda"
#: Above every backend that runs on the CPU.
PRIORITY: Final = 100
#: Turing: the oldest GPUs that Triton compiles for.
OLDEST: Final = (7, 5)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """All that a probe looks at; tests give their own."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    library: Callable[[], Any] = load_library
    software: Callable[[], Software] = installed_software
    release: Callable[[], str | None] = driver_release


def find_devices(around: Surroundings | None = None) -> list[DeviceInfo]:
    """All GPUs, each with the reason if it cannot be used; one line with the reason if there is none. Never raises."""
    around = around or Surroundings()
    software = around.software()
    interpreted = [_interpreter(software)] if _is_on(around.environment.get("TRITON_INTERPRET", "")) else []
    return [*_gpus(around, software), *interpreted]


def _gpus(around: Surroundings, software: Software) -> list[DeviceInfo]:
    try:
        driver = Driver(around.library())
        cuda, gpus = driver.cuda_version(), driver.gpus()
    except (DriverError, AttributeError) as error:  # AttributeError: a driver so old that it lacks a function
        return [_nothing(str(error))]
    if not gpus:
        visible = around.environment.get("CUDA_VISIBLE_DEVICES")
        hidden = f": CUDA_VISIBLE_DEVICES={visible!r} shows none" if visible is not None else ""
        return [_nothing(f"the NVIDIA driver sees no GPU{hidden}")]
    release = around.release()
    reason = _software_reason(software, cuda, release)
    details = {
        "CUDA of the driver": _dotted(cuda),
        "options": "fp8_scale=token_head|tensor, attention=triton|auto|flashinfer|varlen",
    }
    if release is not None:
        details["driver"] = release
    return [_device(index, gpu, reason or _gpu_reason(gpu), details) for index, gpu in enumerate(gpus)]


def _software_reason(software: Software, cuda: tuple[int, int], release: str | None) -> str | None:
    """Why nothing could be run on any GPU."""
    if not software.torch:
        return "torch is not installed: pip install torch"
    if software.torch_cuda is None:
        return "the torch that is installed was built without CUDA: install a build of torch for CUDA"
    # Within a major version every driver runs every toolkit.
    if cuda[0] < software.torch_cuda[0]:
        named = f" {release}" if release is not None else ""
        return (
            f"the NVIDIA driver{named} runs CUDA up to {_dotted(cuda)}, "
            f"torch was built for {_dotted(software.torch_cuda)}: "
            f"update the driver, or install a build of torch for CUDA {cuda[0]}"
        )
    if not software.triton:
        return "triton is not installed: pip install triton"
    return None


def _gpu_reason(gpu: Gpu) -> str | None:
    if gpu.capability < OLDEST:
        return (
            f"its compute capability {_dotted(gpu.capability)} is below {_dotted(OLDEST)}, the lowest that is supported"
        )
    return None


def _device(index: int, gpu: Gpu, reason: str | None, details: Mapping[str, str]) -> DeviceInfo:
    return DeviceInfo(
        backend=NAME,
        device_type="cuda",
        index=index,
        name=gpu.name,
        arch=f"sm_{gpu.capability[0]}{gpu.capability[1]}",
        total_memory=gpu.total_memory,
        available=reason is None,
        reason=reason,
        priority=PRIORITY,
        details={
            **details,
            "processors": str(gpu.num_processors),
            "memory": "shared with the host" if gpu.integrated else "its own",
        },
    )


def _nothing(reason: str) -> DeviceInfo:
    return DeviceInfo(NAME, "cuda", 0, "NVIDIA GPU", "unknown", 0, available=False, reason=reason, priority=PRIORITY)


def _interpreter(software: Software) -> DeviceInfo:
    """With ``TRITON_INTERPRET=1`` every kernel runs on the CPU, one program after the other: for tests, not for use."""
    reason = None if software.torch and software.triton else "torch or triton is not installed"
    return DeviceInfo(
        backend=NAME,
        device_type="cpu",
        index=0,
        name="Triton's interpreter",
        arch=platform.machine(),
        total_memory=read_host_memory().total,
        available=reason is None,
        reason=reason,
        priority=-1,  # never by itself: it is a thousand times slower than the reference backend
    )


def _is_on(value: str) -> bool:
    return value.lower() in {"1", "true", "yes", "on", "y"}


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
