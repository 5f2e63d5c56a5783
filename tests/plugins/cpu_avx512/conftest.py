"""The backend at every instruction-set level that this host has."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator

import pytest
import torch

import baseboard_cpu_avx512
from baseboard_cpu_avx512.backend import CpuBackend
from baseboard_cpu_avx512.levels import Level
from baseboard_cpu_avx512.library import open_library

# The plugin is for x86-64 and is not installed elsewhere; there probe_devices is not even asked.
assert platform.machine() in {"x86_64", "AMD64"}, "leave tests/plugins/cpu_avx512 out on this machine"
# What ``make native-check`` runs must not be the library that is installed.
assert "BASEBOARD_TEST_SANITIZED" not in os.environ or hasattr(open_library(), "__asan_init"), "this library is plain"

LEVELS = [level.name for level in Level if 0 < level <= open_library().bb_host_level()]


@pytest.fixture(autouse=True, scope="session")
def _two_threads() -> None:
    torch.set_num_threads(2)  # one would leave the splitting of work out


def open_at(level: str, **options: object) -> CpuBackend:
    (device,) = baseboard_cpu_avx512.probe_devices()
    backend = baseboard_cpu_avx512.open_backend(device, {"level": level, **options})
    assert isinstance(backend, CpuBackend)
    return backend


@pytest.fixture(params=LEVELS, scope="session")
def backend(request: pytest.FixtureRequest) -> Iterator[CpuBackend]:
    opened = open_at(request.param)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def fastest() -> Iterator[CpuBackend]:
    opened = open_at(LEVELS[-1])
    yield opened
    opened.close()
